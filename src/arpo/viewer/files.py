"""Reads files of a folder that somebody else may have made, and follows those that grow.

No symbolic link inside the folder is followed, only regular files are opened, and everything has a size
limit. So a hostile folder gets an error, and cannot lead to other files. Of an append-only file only new
lines are read; a file that was truncated or replaced is noticed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.storage.files import RESTORE, check_depth, damage, parse_json, parse_object

MAX_LINE = 8 << 20  # bytes of one line of a .jsonl file; an episode of 120,000 sampled tokens has about 4 MiB
MAX_SMALL_FILE = 4 << 20  # bytes of a recipe or a summary
MAX_ENTRIES = 20_000  # of one directory
CHECKED_BYTES = 4096  # at the beginning and before the end of what was read
_CHUNK = 1 << 20
_PIECE = 4 * MAX_LINE  # of an overlong line
MAX_BYTES = 24 << 20  # of a log in memory
MAX_PROBLEMS = 20
_REMEDY = "replace it by a copy"


class SafeFolder:
    """A folder, resolved once. All paths are relative to it, with "/" between their parts."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def path(self, name: str) -> str:
        """The path for messages."""
        return str(self.root / name) if name else str(self.root)

    @contextmanager
    def open(self, name: str) -> Iterator[int]:
        """A file descriptor for reading. Raises FileNotFoundError, or UserError for anything but a file."""
        descriptor = self._open(name, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise UserError(f"{self.path(name)}: is not a file: {_REMEDY}")
            yield descriptor
        finally:
            os.close(descriptor)

    def stat(self, name: str) -> os.stat_result | None:
        """The state of a regular file, None if there is none."""
        try:
            with self.open(name) as descriptor:
                return os.fstat(descriptor)
        except (OSError, UserError):
            return None

    def list(self, name: str = "") -> tuple[list[str], list[str]]:
        """Sorted names of the subfolders and of the files, without links. A missing folder is empty.

        Hidden folders are left out. At most MAX_ENTRIES entries are read.
        """
        try:
            descriptor = self._open(name, os.O_RDONLY | os.O_DIRECTORY)
        except (OSError, UserError):
            return [], []
        try:
            with os.scandir(descriptor) as entries:
                found = [
                    (entry.name, entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False))
                    for _, entry in zip(range(MAX_ENTRIES), entries, strict=False)
                ]
        except OSError:
            return [], []
        finally:
            os.close(descriptor)
        folders = sorted(entry for entry, is_folder, _ in found if is_folder and not entry.startswith("."))
        return folders, sorted(entry for entry, _, is_file in found if is_file)

    def read(self, name: str, limit: int = MAX_SMALL_FILE) -> bytes:
        """The content of a small file. Raises UserError if it is larger than `limit` bytes."""
        with self.open(name) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise UserError(f"{self.path(name)}: has {size:,} bytes, must have at most {limit:,}")
            return os.pread(descriptor, limit, 0)

    def read_json(self, name: str, limit: int = MAX_SMALL_FILE) -> Any:
        """The value of a JSON file, None if there is no file. Raises UserError if it is damaged."""
        try:
            content = self.read(name, limit)
        except OSError:
            return None
        with damage(self.path(name)):
            value = parse_json(content)
            check_depth(value)
        return value

    def _open(self, name: str, flags: int) -> int:
        parts = [part for part in name.split("/") if part]
        if any(part in (".", "..") or "\0" in part for part in parts) or name.startswith("/"):
            raise UserError(f"{name!r}: is not a path inside of {self.root}")
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts[:-1]:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            return os.open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):
                raise UserError(f"{self.path(name)}: is a symbolic link: {_REMEDY}") from None
            raise
        finally:
            os.close(descriptor)


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
    if line is None:
        raise UserError(f"{location}: damaged, a line of more than {MAX_LINE:,} bytes: {RESTORE}")
    return parse_object(line, location)


def parse_shallow(line: bytes | None, location: str) -> dict[str, Any]:
    """The same for a value shown as a whole: it must not be nested deeply."""
    value = parse_line(line, location)
    with damage(location):
        check_depth(value)
    return value


class Log:
    """The records of a small .jsonl file in memory. A damaged line becomes an entry of `problems`."""

    def __init__(self, folder: SafeFolder, name: str, check: Callable[[Mapping[str, Any]], object]) -> None:
        self._folder, self._name, self._check = folder, name, check
        self._mark: Mark | None = None
        self.rows: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.generation = 0  # counts truncations and replacements

    def poll(self) -> None:
        """Read new lines."""
        try:
            with self._folder.open(self._name) as descriptor:
                self._read(descriptor)
        except (OSError, UserError) as error:
            self._clear()
            self.problems = [] if isinstance(error, FileNotFoundError) else [str(error)]

    def _read(self, descriptor: int) -> None:
        if self._mark is not None and not self._mark.fits(descriptor):
            self._clear()
        end = self._mark.end if self._mark else 0
        for start, stop, line in complete_lines(descriptor, end):
            if stop > MAX_BYTES:
                self._report(f"{self._folder.path(self._name)}: only the first {MAX_BYTES:,} bytes are shown")
                break
            self._add(line, start)
            end = stop
        self._mark = Mark.at(descriptor, end)

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
