"""Runs commands with a timeout and an output limit.

After the timeout the whole process group is killed. Output beyond the limit is read and dropped: the command
does not block, and memory stays bounded. Background processes of a finished command keep running.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

OUTPUT_BYTES = 2**20  # kept of stdout, and of stderr
TIMEOUT_SECONDS = 120.0
EXIT_NOT_FOUND = 127
EXIT_TIMED_OUT = 124
_DRAIN_SECONDS = 0.2  # background processes may hold the output of a finished command open
_CHUNK = 64 * 1024

CommandLine = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    output: str
    error: str
    returncode: int
    problem: str  # reason if the command did not start or timed out, else empty


def popen_arguments(command: CommandLine, shell: bool) -> CommandLine:
    """The command for `subprocess.Popen`, with a leading ~/ of each word expanded. Keeps shell text."""
    if isinstance(command, str):
        return command if shell else [_expand(word) for word in shlex.split(command)]
    return [_expand(word) for word in command]


def _expand(word: str) -> str:
    return os.path.expanduser(word) if word.startswith("~/") else word


def run(command: CommandLine, shell: bool, seconds: float = TIMEOUT_SECONDS) -> CommandResult:
    """Waits at most `seconds` for the command to exit. Failures are part of the result: nothing is raised."""
    try:
        words = popen_arguments(command, shell)
        process = subprocess.Popen(
            words,
            shell=shell,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError, IndexError) as error:
        return CommandResult(output="", error=str(error), returncode=EXIT_NOT_FOUND, problem=str(error))
    assert process.stdout is not None and process.stderr is not None
    output, error_output = _OutputReader(process.stdout), _OutputReader(process.stderr)
    problem = ""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        problem = f"Command timed out after {seconds:g} seconds."
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + _DRAIN_SECONDS
    texts = output.text(deadline), error_output.text(deadline)
    code = EXIT_TIMED_OUT if problem else process.returncode
    return CommandResult(output=texts[0], error=texts[1] or problem, returncode=code, problem=problem)


class _OutputReader:
    """Reads a stream to its end in a thread, and keeps the first `OUTPUT_BYTES`."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), _CHUNK):
                free = OUTPUT_BYTES - len(self._kept)
                self._kept += chunk[:free]
                self._dropped += max(0, len(chunk) - free)

    def text(self, deadline: float) -> str:
        """The kept output. Waits for the end of the stream, at most until `deadline` (monotonic)."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        text = self._kept.decode("utf-8", "replace")
        return f"{text}\n[{self._dropped} more bytes were dropped]" if self._dropped else text
