"""Running processes from /proc, for tests of process cleanup."""

import time
from pathlib import Path


def parents():
    """{pid: parent pid} of all running processes, without zombies."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent = status.rpartition(")")[2].split()[:2]
            if state not in "ZX":
                found[int(entry.name)] = int(parent)
    return found


def descendants(process):
    """Pids of all children, grandchildren and so on."""
    running = parents()
    family = {process}
    while more := {child for child, parent in running.items() if parent in family} - family:
        family |= more
    return family - {process}


def wait_until(condition, seconds=20.0):
    """Whether the condition became true within `seconds`, which is far more than it needs."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
