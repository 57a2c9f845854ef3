"""Starts, watches and ends a child process.

    child = Child(python_command("arpo.storage.encoder_process"), env=clean_environment())
    child.exit_reason   # None while it runs
    child.last_output   # the end of its stderr
    child.end()

No child outlives this process, even if this process is killed. A program that exits when its stdin closes
needs nothing more. Any other program runs with `guarded=True` (`guard.py`), or calls `end_with_parent`.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from arpo.errors import printable
from arpo.processes import guard

KILL_SECONDS = 20.0  # for a guard to end all processes after the grace period
_LINES_KEPT = 20
_LINES_SHOWN = 5
_MAX_LINE = 500  # characters
_TAIL_BYTES = 65536
# "(EngineCore pid=7) ERROR 11-16 09:53:43 [core.py:12] ValueError: too small"
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) )?((ERROR|WARNING|INFO) [\d-]+ [\d:]+ \[[^\]]*\] )?")
_ERROR = re.compile(r"^[\w.]*(Error|Exception|error)\b:? ")


class Child:
    """A running child process in a session of its own: Ctrl-C does not reach it.

    `env`: all of its environment variables; `clean_environment()` has no secrets. Its stderr is kept in
    memory, the last lines only, or appended to `log` together with its stdout. `guarded`: all descendants end
    with it. `grace_seconds`: for a clean exit after its stdin closes (guarded: after SIGTERM).
    Raises OSError if the program cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path | None = None,
        guarded: bool = False,
        grace_seconds: float = 0.0,
        stdin: int = subprocess.PIPE,
        stdout: int = subprocess.DEVNULL,
        pass_fds: Sequence[int] = (),
        cwd: Path | str | None = None,
    ) -> None:
        if guarded:
            command = [sys.executable, "-I", "-S", guard.__file__, str(grace_seconds), *command]
            grace_seconds += KILL_SECONDS
        self.log, self._log_start = log, 0
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reader: threading.Thread | None = None
        with ExitStack() as opened:
            output: IO[bytes] | None = None
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                output = opened.enter_context(open(log, "ab", opener=_private))
                self._log_start = output.seek(0, os.SEEK_END)
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=output or stdout,
                stderr=output or subprocess.PIPE,
                env=env,
                cwd=cwd,
                pass_fds=pass_fds,
                start_new_session=True,
            )
        if self.process.stderr is not None:
            self._reader = threading.Thread(
                target=_keep_lines, args=(self.process.stderr, self._lines), daemon=True
            )
            self._reader.start()
        self._finalizer = weakref.finalize(self, _end, self.process, grace_seconds, guarded)

    @property
    def exit_reason(self) -> str | None:
        """None while it runs. Examples: "exit code 1", "killed by SIGKILL"."""
        code = self.process.poll()
        return None if code is None else describe_exit(code)

    @property
    def last_lines(self) -> list[str]:
        """The last lines of its output since its start."""
        if self.log is not None:
            return read_tail(self.log, self._log_start)
        if self._reader is not None and self.process.poll() is not None:
            self._reader.join(1.0)  # a grandchild may keep stderr open
        return list(self._lines)

    @property
    def last_output(self) -> str:
        """The last error messages of its output, or else its last lines, joined into one line."""
        lines = [_PREFIX.sub("", line).strip() for line in self.last_lines]
        errors = list(dict.fromkeys(line for line in lines if _ERROR.match(line)))
        shown = errors or list(filter(None, lines))
        return printable(" | ".join(shown[-_LINES_SHOWN:])) or "none"

    def find_line(self, pattern: str) -> str | None:
        """The first line of its output that begins with the pattern; None if there is none."""
        lines = read_tail(self.log, self._log_start, None) if self.log is not None else self.last_lines
        found = (_PREFIX.sub("", line).strip() for line in lines)
        return next((printable(line) for line in found if re.match(pattern, line)), None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for its exit. Returns False after `seconds`."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """End it: close its stdin, wait for the grace period, kill it. Garbage collection does the same."""
        self._finalizer()


def python_command(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command that runs a module as a program: the only form in which this package starts Python.

    A file in the current folder never replaces a module of the same name there, for example json.py.

    >>> python_command("arpo", "train", python="python3")
    ['python3', '-P', '-m', 'arpo', 'train']
    """
    return [python, "-P", "-m", module, *arguments]


def describe_exit(code: int) -> str:
    """In words. `code`: as in `subprocess`, or 128 + signal as of a shell.

    >>> describe_exit(1), describe_exit(-9), describe_exit(137)
    ('exit code 1', 'killed by SIGKILL', 'killed by SIGKILL')
    """
    with suppress(ValueError):
        return f"killed by {signal.Signals(-code if code < 0 else code - 128).name}"
    return f"exit code {code}"


def read_tail(log: Path, start: int = 0, lines: int | None = _LINES_KEPT) -> list[str]:
    """The last lines of a log that are not empty, after its first `start` bytes. [] if it cannot be read.

    `lines`: how many at most; None: all of its last 64 KiB.
    """
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(start, size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip()[:_MAX_LINE] for line in text.splitlines() if line.strip()][-(lines or 0) :]


def end_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when the thread that started it ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(guard.PR_SET_PDEATHSIG, number)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def _keep_lines(stream: IO[bytes], lines: deque[str]) -> None:
    with stream:
        for line in stream:
            if text := line.decode("utf-8", "replace").rstrip()[:_MAX_LINE]:
                lines.append(text)


def _end(process: subprocess.Popen[bytes], grace_seconds: float, guarded: bool) -> None:
    if not grace_seconds:
        process.kill()
    for stream in filter(None, (process.stdin, process.stdout)):
        with suppress(OSError):  # the child has ended already
            stream.close()
    try:
        process.wait(grace_seconds or None)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if guarded and process.returncode < 0:  # the guard was killed: its group has what it guarded
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
