"""Who is running, as the kernel tells it; for tests that end processes and count what is left."""

import time
from pathlib import Path


def parents():
    """{process: its parent} of all that run; the dead that wait to be fetched are not among them."""
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
    """Of all generations."""
    running = parents()
    family = {process}
    while more := {child for child, parent in running.items() if parent in family} - family:
        family |= more
    return family - {process}


def wait_until(happened, seconds=20.0):
    """Whether it happened within the time, which is far more than it takes."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
