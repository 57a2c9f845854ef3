"""Commands: run one to its end and keep what it says, up to a limit.

A command that takes too long is ended with its whole process group. What it says beyond the limit is read and
dropped, so that it neither blocks nor fills memory. A background process that it leaves behind lives on.
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

OUTPUT_BYTES = 2**20  # kept of each of the two outputs
SECONDS = 120.0
NOT_FOUND = 127
TOO_LONG = 124
_DRAIN_SECONDS = 0.2  # a finished command's outputs may be held open by what it left behind
_CHUNK = 64 * 1024

Words = str | Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    output: str
    error: str
    returncode: int
    problem: str  # why it did not run to its end; empty where it did


def split(command: Words, shell: bool) -> Words:
    """The command as `subprocess` takes it: words, with the home folder for a leading tilde."""
    if isinstance(command, str):
        return command if shell else [_expand(word) for word in shlex.split(command)]
    return [_expand(word) for word in command]


def _expand(word: str) -> str:
    return os.path.expanduser(word) if word.startswith("~/") else word


def run(command: Words, shell: bool, seconds: float, folder: str | None = None) -> Outcome:
    try:
        words = split(command, shell)
        process = subprocess.Popen(
            words,
            shell=shell,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError, IndexError) as error:
        return Outcome(output="", error=str(error), returncode=NOT_FOUND, problem=str(error))
    assert process.stdout is not None and process.stderr is not None
    output, error_output = _Kept(process.stdout), _Kept(process.stderr)
    problem = ""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        problem = f"Command timed out after {seconds:g} seconds."
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    drained = time.monotonic() + _DRAIN_SECONDS
    texts = output.text(drained), error_output.text(drained)
    code = TOO_LONG if problem else process.returncode
    return Outcome(output=texts[0], error=texts[1] or problem, returncode=code, problem=problem)


class _Kept:
    """The beginning of a stream that is read to its end by a thread."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._kept = bytearray()
        self._dropped = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._stream:
            while chunk := os.read(self._stream.fileno(), _CHUNK):
                room = OUTPUT_BYTES - len(self._kept)
                self._kept += chunk[:room]
                self._dropped += max(0, len(chunk) - room)

    def text(self, until: float) -> str:
        """What was kept, when the stream has ended or, at the latest, at that moment."""
        self._thread.join(max(0.0, until - time.monotonic()))
        text = self._kept.decode("utf-8", "replace")
        return f"{text}\n[{self._dropped} bytes more were dropped]" if self._dropped else text
