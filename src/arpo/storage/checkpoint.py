"""Checkpoints: folders, complete or absent.

`save` writes a temporary folder, lists every file with size and sha256 in manifest.json, flushes all files to
disk, renames the folder, and only then deletes older checkpoints. `latest` verifies the manifest and skips
damaged checkpoints with a message. The caller defines their content.

A checkpoint is a real folder named step-NUMBER, with at least six digits. Links are neither followed nor
deleted, because their content may belong to another run. Entries with other names are ignored.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from arpo.errors import UserError
from arpo.storage.files import WRITTEN_BY, naming, parse_json
from arpo.storage.from_json import from_json

CHECKPOINTS = "checkpoints"  # their folder inside a run folder
LEARNER = "learner"  # the folder of the learner inside a checkpoint
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-([0-9]{6}|[1-9][0-9]{6,12})")  # names given by `save`
_TEMPORARY = ".tmp-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint folder, for example step 4 in checkpoints/step-000004."""

    step: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _SavedFile:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Manifest:
    step: int
    files: dict[str, _SavedFile]


def save(root: Path, step: int, write: Callable[[Path], None], keep: int) -> Checkpoint:
    """Save a checkpoint and keep the newest `keep`. `write` fills an empty folder.

    Also deletes checkpoints newer than `step`: they belong to an abandoned run. If `write` raises, the
    existing checkpoints stay.

    >>> save(root, 4, lambda folder: learner.save(folder / "learner"), keep=2)
    """
    root.mkdir(parents=True, exist_ok=True)
    path = root / f"step-{step:06d}"
    temporary = root / f"{_TEMPORARY}{path.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with naming(path):
            temporary.mkdir()
            write(temporary)
            _write_manifest(temporary, step)
            _sync_all(temporary)
            _move(temporary, path)
    except BaseException:  # for example a full disk: the incomplete checkpoint would keep it full
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    kept = {
        path.name,
        *[found.path.name for found in _list_checkpoints(root) if found.step < step][: keep - 1],
    }
    for entry in root.iterdir():
        own = entry.name.startswith(_TEMPORARY) or _NAME.fullmatch(entry.name)
        if own and entry.name not in kept and _is_folder(entry):
            shutil.rmtree(entry)
    return Checkpoint(step=step, path=path)


def _move(temporary: Path, path: Path) -> None:
    if _is_folder(path):
        replaced = path.with_name(f"{_TEMPORARY}old-{path.name}")
        shutil.rmtree(replaced, ignore_errors=True)
        os.rename(path, replaced)
    elif os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(temporary, path)
    _sync(path.parent)


def latest(root: Path) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """Return the newest intact checkpoint (or None), and a message for each newer, damaged one.

    Raises UserError if a file or a link has the name of a checkpoint: it would be in the way later.
    """
    for entry in _named_entries(root):
        if not _is_folder(entry):
            kind = "a link" if entry.is_symlink() else "not a folder"
            raise UserError(
                f"{entry}: has the name of a checkpoint, but is {kind}: move it to another folder"
            )
    damaged: list[str] = []
    for found in _list_checkpoints(root):
        reason = find_damage(found)
        if not reason:
            return found, tuple(damaged)
        damaged.append(f"checkpoint {found.path} is damaged and was skipped: {reason}")
    return None, tuple(damaged)


def intact_checkpoints(root: Path) -> list[Checkpoint]:
    """All intact checkpoints, the newest first."""
    return [found for found in _list_checkpoints(root) if not find_damage(found)]


def step_of(folder: Path) -> int | None:
    """The step of a checkpoint's folder, from its name. None if it is not the name of a checkpoint."""
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else None


def find_damage(checkpoint: Checkpoint) -> str:
    """Describe the first difference to the manifest; "" if the checkpoint is intact."""
    try:
        manifest = from_json(parse_json((checkpoint.path / MANIFEST).read_bytes()), _Manifest)
        if manifest.step != checkpoint.step:
            return f"{MANIFEST} belongs to step {manifest.step}"
        for name, expected in manifest.files.items():
            path = checkpoint.path / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected.size:
                return f"{name} has {path.stat().st_size} bytes, not {expected.size}"
        found = _sha256_of(checkpoint.path / name for name in manifest.files)
        for (name, expected), digest in zip(manifest.files.items(), found, strict=True):
            if digest != expected.sha256:
                return f"{name} does not match its sha256"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return ""


def _list_checkpoints(root: Path) -> list[Checkpoint]:
    """Newest first."""
    folders = [(step_of(path), path) for path in _named_entries(root) if _is_folder(path)]
    found = [Checkpoint(step=step, path=path) for step, path in folders if step is not None]
    return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)


def _named_entries(root: Path) -> list[Path]:
    """Entries with the name of a checkpoint, of any kind."""
    return [path for path in root.glob("step-*") if step_of(path) is not None]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _write_manifest(folder: Path, step: int) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": digest}
        for path, digest in zip(paths, _sha256_of(paths), strict=True)
    }
    (folder / MANIFEST).write_text(
        json.dumps({**WRITTEN_BY, "step": step, "files": files}, indent=2), "utf-8"
    )


def _sha256_of(paths: Iterable[Path]) -> list[str]:
    """Files of a large checkpoint are read at the same time: hashing one takes a second per gigabyte."""
    with ThreadPoolExecutor(max_workers=8) as threads:
        return list(threads.map(_sha256, paths))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
