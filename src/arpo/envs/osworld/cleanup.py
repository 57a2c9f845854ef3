"""Deletes temporary folders and control groups when this process ends, even if it is killed.

A shell process reads paths from a pipe. The kernel closes the pipe when this process has ended, with all
processes forked from it. The shell process then deletes the paths.
"""

from __future__ import annotations

import functools
import subprocess
import threading
from pathlib import Path

from arpo.errors import UserError

# Retries, because dying processes may still write. A control group has files that only the kernel removes.
_SCRIPT = """\
paths=$(cat)
IFS='
'
set -f
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    left=no
    for path in $paths; do
        rm -rf -- "$path" 2>/dev/null || find "$path" -depth -type d -exec rmdir -- {} +
        [ ! -e "$path" ] || left=yes
    done
    [ "$left" = yes ] || exit 0
    sleep 1
done
"""
_lock = threading.Lock()


def delete_at_exit(path: Path) -> None:
    """Raises UserError for a path with a line break, because paths are sent as lines."""
    if "\n" in str(path):
        raise UserError(f"TMPDIR: {str(path.parent)!r} contains a line break: choose another folder")
    with _lock:
        pipe = _start().stdin
        assert pipe is not None
        pipe.write(f"{path}\n".encode())
        pipe.flush()


@functools.cache
def _start() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
