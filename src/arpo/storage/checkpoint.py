"""Checkpoints: folders that are whole or not there.

A checkpoint is written beside its place, every file is brought to the disk and listed with its size and hash
in manifest.json, and one rename puts it in place; only then are older ones removed. Reading trusts nothing:
what does not match its manifest is named and passed over. What is inside is its writer's business.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHECKPOINTS = "checkpoints"  # the folder of a run that holds them
LEARNER = "learner"  # the folder of a checkpoint that the learner writes
MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{6,})")
_BESIDE = ".tmp-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    step: int
    path: Path


def save(root: Path, step: int, write: Callable[[Path], None], keep: int) -> Checkpoint:
    """Let `write` fill a fresh folder, put it in place as step `step`, and keep the newest `keep` in all.

    Checkpoints of later steps are of a future that was given up, and go as well.
    """
    root.mkdir(parents=True, exist_ok=True)
    place = root / f"step-{step:06d}"
    beside = root / f"{_BESIDE}{place.name}"
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir()
    write(beside)
    _write_manifest(beside, step)
    _sync_all(beside)
    if place.exists():
        given_up = root / f"{_BESIDE}old-{place.name}"
        shutil.rmtree(given_up, ignore_errors=True)
        os.rename(place, given_up)
    os.rename(beside, place)
    _sync(root)
    kept = {place.name, *[found.path.name for found in _listed(root) if found.step < step][: keep - 1]}
    for entry in root.iterdir():
        if entry.name.startswith(_BESIDE) or (_NAME.fullmatch(entry.name) and entry.name not in kept):
            shutil.rmtree(entry)
    return Checkpoint(step=step, path=place)


def latest(root: Path) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest whole checkpoint, and a line about each newer one that is damaged."""
    damaged: list[str] = []
    for found in _listed(root):
        reason = find_damage(found)
        if not reason:
            return found, tuple(damaged)
        damaged.append(f"checkpoint {found.path} is damaged and was passed over: {reason}")
    return None, tuple(damaged)


def find_damage(checkpoint: Checkpoint) -> str:
    """What is wrong with it; "" when nothing is."""
    try:
        manifest = json.loads((checkpoint.path / MANIFEST).read_text("utf-8"))
        if manifest["step"] != checkpoint.step:
            return f"{MANIFEST} is that of step {manifest['step']}"
        for name, expected in manifest["files"].items():
            path = checkpoint.path / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != expected["size"]:
                return f"{name} is {path.stat().st_size} bytes, not {expected['size']}"
            if _sha256(path) != expected["sha256"]:
                return f"{name} has other content than was written"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return ""


def _listed(root: Path) -> list[Checkpoint]:
    """Newest first."""
    matches = [(match, path) for path in root.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    found = [Checkpoint(step=int(match[1]), path=path) for match, path in matches]
    return sorted(found, key=lambda checkpoint: checkpoint.step, reverse=True)


def _write_manifest(folder: Path, step: int) -> None:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": _sha256(path)}
        for path in paths
    }
    (folder / MANIFEST).write_text(json.dumps({"step": step, "files": files}, indent=2), "utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    """Bring a file, or a folder's list of names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
