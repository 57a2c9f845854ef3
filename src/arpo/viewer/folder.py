"""Reads files of a folder that somebody else may have made.

No symbolic link inside the folder is followed, only regular files are opened, and everything has a size
limit. So a hostile folder gets an error, and cannot lead to other files.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.storage.files import check_depth, damage

MAX_LINE = 8 << 20  # bytes of one line of a .jsonl file; an episode of 120,000 sampled tokens has about 4 MiB
MAX_SMALL_FILE = 4 << 20  # bytes of a recipe or a summary
MAX_ENTRIES = 20_000  # of one directory
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
            value = json.loads(content)
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
