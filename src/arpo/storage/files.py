"""Reading and writing the user's files. A damaged file is a UserError with the file and the remedy.

An OSError names the file that could not be written. `arpo` prints it as one line (cli/entry_point.py).
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from arpo import __version__
from arpo.errors import UserError

RESTORE = "restore the file, or remove the run"
RESTORE_OR_LEAVE = "restore the file, or start a run in another run.dir"
FORMAT = 2  # of run folders and checkpoints. 1 had no number and no groups.jsonl
WRITTEN_BY = {"format": FORMAT, "arpo": __version__}
MAX_DEPTH = 100  # of nested JSON values in a document that is kept as a whole
_CONTAINERS = (dict, list)


@contextmanager
def damage(location: Path | str, remedy: str = RESTORE) -> Iterator[None]:
    """Convert a ValueError of the block to a UserError: location, reason, remedy. Other errors are bugs.

    >>> with damage(path):
    ...     point = from_json(parse_json(path.read_bytes()), Point)  # ValueError: a UserError with the path
    """
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{location}: damaged, {str(error)[:200]}: {remedy}") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError of the block this path: that of a write or a flush has none."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        del error.filename2
        raise


def write_all(file: FileIO, data: bytes) -> None:
    """Write to an unbuffered file. A buffer would keep what a full disk refuses, and fail again on close."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def read_lines(path: Path, remedy: str = RESTORE) -> Iterator[dict[str, Any]]:
    """Yield the records of a .jsonl file. A missing file is empty; an incomplete last line is skipped."""
    if path.is_file():
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield parse_object(line, f"{path}: line {number}", remedy)


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a file at a path from somebody else. Never waits, and reads no more than its size.

    So a file of the kernel, for example /proc/kmsg, is an empty one. Raises OSError if it cannot be read,
    ValueError if it is not a regular file, or has more than `limit` bytes.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("is not a regular file")
        if state.st_size > limit:
            raise ValueError(f"has {state.st_size:,} bytes, must have at most {limit:,}")
        return file.read(state.st_size)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} if there is no file. Raises UserError if it is damaged."""
    if not path.is_file():
        return {}
    record = parse_object(path.read_bytes(), path)
    with damage(path):
        check_depth(record)
    return record


def check_format(path: Path) -> None:
    """Raise UserError if the JSON file, which has WRITTEN_BY in it, is from a version with another format."""
    found = read_json(path)
    if found.get("format") != FORMAT:
        version = f"version {found['arpo']}" if "arpo" in found else "an earlier version"
        raise UserError(
            f"{path.parent}: {version} of arpo wrote it, in another format than this one ({__version__}): "
            "resume with that version, or choose another --run.dir"
        )


def parse_object(text: bytes, location: Path | str, remedy: str = RESTORE) -> dict[str, Any]:
    with damage(location, remedy):
        record = parse_json(text)
        if not isinstance(record, dict):
            raise ValueError("not a JSON object")
    return record


def parse_json(text: bytes) -> Any:
    """Raises ValueError with the reason."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg})") from None


def check_depth(value: Any) -> None:
    """Raise ValueError for values nested so deeply that a later copy or dump could fail."""
    layer = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_DEPTH + 1):
        if not layer:
            return
        layer = [inner for outer in layer for inner in _values(outer) if isinstance(inner, _CONTAINERS)]
    raise ValueError(f"nested too deeply: more than {MAX_DEPTH} levels")


def _values(container: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return container.values() if isinstance(container, dict) else container


def write_atomically(path: Path, text: str) -> None:
    """Write a file through a temporary one: after a kill it has the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path):
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def lock_folder(folder: Path, kind: str, option: str) -> int:
    """Create the folder and lock it until this process ends; returns a file descriptor to unlock it earlier.

    Raises UserError if the folder is not writable or another process has the lock. `kind` ("run") and
    `option` ("--run.dir") appear in the message.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            f"{folder}: the folder of the {kind} cannot be written: {error.strerror}: choose another {option}"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        if isinstance(error, BlockingIOError):
            reason = f"another process is writing this {kind}"
        else:
            reason = f"its file system has no file locks ({error.strerror})"
        raise UserError(f"{folder}: {reason}: choose another {option}") from None
    return file


def escapes_folder(path: str) -> bool:
    """Whether a path, taken relative to a folder, leads out of it or to the folder itself.

    >>> [escapes_folder(path) for path in ("os/a.json", "../a.json", "/a.json", ".")]
    [False, True, True, True]
    """
    parts = path.replace("\\", "/").split("/")
    return parts[0] == "" or ".." in parts or set(parts) <= {"", "."} or "\0" in path
