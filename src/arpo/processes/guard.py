"""Runs a server and leaves none of its processes behind, even if its supervisor is killed.

    python -I -S guard.py GRACE_SECONDS COMMAND [ARGUMENT …]

vLLM starts processes of its own, which survive it if it is killed. This process adopts them (Linux:
subreaper). It ends all of them when the server ends, or when the supervisor closes stdin; the kernel closes
it if the supervisor is killed. The server gets SIGTERM first, and GRACE_SECONDS for a clean exit. SIGINT is
passed on to it. If the guard itself is killed, the kernel kills the server.

A server that is killed leaves shared memory (/dev/shm/psm_*, sem.mp-*). Python's resource tracker, a process
of the server, removes it when all others have ended. So the guard kills the trackers last.

It is a program of its own, without imports from this package: it starts fast and uses little memory.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NOT_STARTED = 127  # exit code, as a shell reports it
TRACKER = b"multiprocessing.resource_tracker"  # in its command line
TRACKER_SECONDS = 5.0  # for removing the shared memory of processes that have ended
_libc = ctypes.CDLL(None, use_errno=True)


def run(grace_seconds: float, command: Sequence[str]) -> int:
    """Run the command until it ends or stdin closes. Returns its exit code; 128 + signal if it was killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # until the server runs
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()

    def die_with_guard() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(NOT_STARTED)

    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            close_fds=False,  # a descriptor that the supervisor has passed is for the server
            preexec_fn=die_with_guard,  # noqa: PLW1509  (this process has no threads)
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return NOT_STARTED
    signal.signal(signal.SIGINT, lambda *_: server.send_signal(signal.SIGINT))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    ended = os.pidfd_open(server.pid)
    if not _wait(ended, stdin=0):
        server.terminate()
        _wait(ended, seconds=grace_seconds)
    server.kill()
    code = server.wait()
    _kill_children()
    return code if code >= 0 else 128 - code


def _wait(ended: int, *, stdin: int | None = None, seconds: float | None = None) -> bool:
    """Wait until the server has ended, stdin closes, or the time is over. Returns whether it has ended."""
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    if stdin is not None:
        poll.register(stdin, select.POLLIN)
    while events := dict(poll.poll(None if seconds is None else 1000 * seconds)):
        if ended in events:
            return True
        if not os.read(0, 4096):
            return False
    return False


def _kill_children() -> None:
    """Kill all descendants: when a child dies, its own children become ours. Trackers get some seconds."""
    patience_ends = None
    while True:
        children = list(_children())
        others = [child for child in children if not _is_tracker(child)]
        if others or patience_ends is None:
            patience_ends = time.monotonic() + TRACKER_SECONDS
        patient = time.monotonic() < patience_ends
        for child in others if patient else children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        try:
            if os.waitpid(-1, 0 if others or not patient else os.WNOHANG) == (0, 0):
                time.sleep(0.02)
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    own = str(os.getpid())
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if file.read().rpartition(b")")[2].split()[1].decode() == own:
                yield int(name)


def _is_tracker(process: int) -> bool:
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            return TRACKER in file.read()
    except OSError:
        return False


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl failed")


if __name__ == "__main__":
    sys.exit(run(float(sys.argv[1]), sys.argv[2:]))
