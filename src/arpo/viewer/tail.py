"""Follows append-only files: reads only new lines, and notices when a file was truncated or replaced."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arpo.errors import UserError
from arpo.storage.files import check_depth, damage
from arpo.viewer.folder import MAX_LINE, SafeFolder

CHECKED_BYTES = 4096  # at the beginning and before the end of what was read
_CHUNK = 1 << 20
_PIECE = 4 * MAX_LINE  # of an overlong line
MAX_BYTES = 24 << 20  # of a log in memory
MAX_PROBLEMS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a file was read. `fits` tells if the bytes before `end` are still the same file."""

    inode: int
    end: int
    hash: str

    @classmethod
    def at(cls, descriptor: int, end: int) -> Mark:
        return cls(inode=os.fstat(descriptor).st_ino, end=end, hash=_hash(descriptor, end))

    def fits(self, descriptor: int) -> bool:
        state = os.fstat(descriptor)
        same = state.st_ino == self.inode and state.st_size >= self.end
        return same and _hash(descriptor, self.end) == self.hash


def _hash(descriptor: int, end: int) -> str:
    size = min(end, CHECKED_BYTES)
    ends = os.pread(descriptor, size, 0) + os.pread(descriptor, size, end - size)
    return hashlib.sha256(ends).hexdigest()


def complete_lines(descriptor: int, at: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (start, end, line) of each complete line from byte `at` on; None for one over MAX_LINE bytes.

    A far longer line is several of these, so the caller of a file without line ends is not kept waiting.
    """
    start, pending, too_long = at, bytearray(), False
    while chunk := os.pread(descriptor, _CHUNK, at):
        at += len(chunk)
        position = 0
        while (newline := chunk.find(b"\n", position)) >= 0:
            end = at - len(chunk) + newline + 1
            pending += chunk[position:newline]
            yield start, end, None if too_long or len(pending) > MAX_LINE else bytes(pending)
            start, position, too_long = end, newline + 1, False
            pending.clear()
        too_long = too_long or len(pending) + len(chunk) - position > MAX_LINE
        if too_long:
            pending.clear()
            if at - start >= _PIECE:
                yield start, at, None
                start = at
        else:
            pending += chunk[position:]


def parse_line(line: bytes | None, location: str) -> dict[str, Any]:
    """The JSON object in a line. Raises UserError if there is none."""
    with damage(location):
        if line is None:
            raise ValueError(f"a line of more than {MAX_LINE:,} bytes")
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
    return value


def parse_shallow(line: bytes | None, location: str) -> dict[str, Any]:
    """The same for a value shown as a whole: it must not be nested deeply."""
    value = parse_line(line, location)
    with damage(location):
        check_depth(value)
    return value


class Log:
    """The records of a small .jsonl file in memory. A damaged line becomes an entry of `problems`."""

    def __init__(self, folder: SafeFolder, name: str, check: Callable[[Mapping[str, Any]], None]) -> None:
        self._folder, self._name, self._check = folder, name, check
        self._mark: Mark | None = None
        self.rows: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.generation = 0  # counts truncations and replacements

    def poll(self) -> bool:
        """Read new lines. Returns whether something changed."""
        try:
            with self._folder.open(self._name) as descriptor:
                return self._read(descriptor)
        except (OSError, UserError) as error:
            missing = isinstance(error, FileNotFoundError)
            changed = self._mark is not None or (not missing and not self.problems)
            self._clear()
            self.problems = [] if missing else [str(error)]
            return changed

    def _read(self, descriptor: int) -> bool:
        changed = False
        if self._mark is not None and not self._mark.fits(descriptor):
            self._clear()
            changed = True
        begin = end = self._mark.end if self._mark else 0
        for start, stop, line in complete_lines(descriptor, end):
            if stop > MAX_BYTES:
                self._report(f"{self._folder.path(self._name)}: only the first {MAX_BYTES:,} bytes are shown")
                break
            self._add(line, start)
            end = stop
        if self._mark is None or end != begin:
            self._mark = Mark.at(descriptor, end)
        return changed or end != begin

    def _clear(self) -> None:
        self.generation += self._mark is not None
        self._mark, self.rows, self.problems = None, [], []

    def _add(self, line: bytes | None, start: int) -> None:
        location = f"{self._folder.path(self._name)}: byte {start}"
        try:
            record = parse_shallow(line, location)
            with damage(location):
                self._check(record)
            self.rows.append(record)
        except UserError as error:
            self._report(str(error))

    def _report(self, problem: str) -> None:
        if problem not in self.problems and len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
