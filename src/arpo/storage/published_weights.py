"""Published weights: folders through which a learner hands new weights to engines in other processes.

    ROOT/version-000007/model.safetensors    full model, Hugging Face names; several files if large or sharded
                        checksums.json       of each tensor, as a server holds it; one file per writer
                        probe.json           a prompt and the learner's log-probabilities of an answer
                        COMPLETE             the version, and each file with its size; written last

A LoRA run has adapter_model.safetensors and adapter_config.json (PEFT) instead of a model. For readers, a
folder without COMPLETE does not exist. Each version is written once and read by every engine, also by one
that starts later. This module knows no tensors.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.storage.files import damage, naming, parse_json, read_json, write_atomically
from arpo.storage.from_json import from_json
from arpo.types import Screenshot

MODEL_FILE, PROBE_FILE, MARKER = "model.safetensors", "probe.json", "COMPLETE"
CHECKSUM_FILE = "checksums.json"
ADAPTER_FILE, ADAPTER_CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
KEPT_VERSIONS = 2
SHARED_MEMORY = Path("/dev/shm")
_REMEDY = "start the run again"
_FOLDER = re.compile(r"version-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A prompt with screenshots, an answer to it, and the learner's log-probability of each answer token.

    The log-probabilities are at temperature 1. An engine with the same weights computes the same numbers, up
    to rounding; so does one whose weights are only a few updates old.
    """

    token_ids: tuple[int, ...]  # as in Prompt: an image has all of its placeholder tokens
    images: tuple[Screenshot, ...]
    answer: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.answer) != len(self.logprobs):
            raise ValueError(f"{len(self.answer)} answer tokens and {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marker:
    version: int
    files: dict[str, int]  # bytes by name


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """A complete version. `files` are the names that COMPLETE lists: others in the folder are not read."""

    version: int
    folder: Path
    files: tuple[str, ...]

    @property
    def has_adapters(self) -> bool:
        """Whether these are LoRA adapters instead of a full model."""
        return ADAPTER_FILE in self.files

    @property
    def tensor_files(self) -> list[Path]:
        """The files with the weights."""
        return [self.folder / name for name in self.files if name.endswith(".safetensors")]

    def checksums(self) -> dict[str, int]:
        """The checksum of each tensor by its name. Raises UserError if a file is damaged or none exists."""
        sums: dict[str, int] = {}
        stem = Path(CHECKSUM_FILE).stem
        paths = [self.folder / name for name in self.files if name.startswith(stem)]
        if not paths or not all(path.is_file() for path in paths):
            raise UserError(f"{self.folder}: has no {CHECKSUM_FILE}: {_REMEDY}")
        for path in paths:
            with damage(path, _REMEDY):
                sums |= from_json(read_json(path), dict[str, int])
        return sums

    def probe(self) -> Probe:
        """Raises UserError if probe.json is damaged."""
        path = self.folder / PROBE_FILE
        with damage(path, _REMEDY):
            return from_json(read_json(path), Probe, {Screenshot: _decode})


def _decode(image: Any) -> Screenshot:
    return Screenshot.of(base64.b64decode(from_json(image, str)))


def version_folder(root: Path, version: int) -> Path:
    """ROOT/version-000007"""
    return root / f"version-{version:06}"


def write_probe(folder: Path, probe: Probe) -> None:
    value = {
        "token_ids": list(probe.token_ids),
        "images": [base64.b64encode(image.png).decode() for image in probe.images],
        "answer": list(probe.answer),
        "logprobs": list(probe.logprobs),
    }
    (folder / PROBE_FILE).write_text(json.dumps(value) + "\n", encoding="utf-8")


@contextmanager
def publishing(root: Path, version: int) -> Iterator[Path]:
    """An empty folder for the files of a version. It is complete after the block, and absent if that fails.

    Versions older than the newest two are removed.
    """
    folder = version_folder(root, version)
    _remove(folder)
    try:
        with naming(folder):
            folder.mkdir(mode=0o700)
            yield folder
            files = {path.name: _synced_size(path) for path in sorted(folder.iterdir())}
            write_atomically(folder / MARKER, json.dumps({"version": version, "files": files}) + "\n")
    except BaseException:
        _remove(folder)
        raise
    for old in sorted(_versions(root))[:-KEPT_VERSIONS]:
        _remove(version_folder(root, old))


def read_published(folder: Path) -> PublishedWeights | None:
    """The version in this folder, or None if it is not complete."""
    try:
        marker = from_json(parse_json((folder / MARKER).read_bytes()), _Marker)
        complete = all(_has_file(folder, name, size) for name, size in marker.files.items())
        files = tuple(sorted(marker.files))
        return PublishedWeights(version=marker.version, folder=folder, files=files) if complete else None
    except (OSError, ValueError):
        return None


def _has_file(folder: Path, name: str, size: int) -> bool:
    state = (folder / name).lstat()
    return "/" not in name and stat.S_ISREG(state.st_mode) and state.st_size == size


def newest_published(root: Path) -> PublishedWeights | None:
    """The newest complete version, or None if there is none."""
    for version in sorted(_versions(root), reverse=True):
        if (found := read_published(version_folder(root, version))) is not None:
            return found
    return None


@contextmanager
def weights_root(chosen: str, run: Path, version_bytes: int) -> Iterator[Path]:
    """The empty root folder of a run; removed at the end. A leftover of a killed run is removed first.

    The root lies in the folder `chosen` (engine.weights); without one in shared memory, if that has space for
    three versions, or else in the run folder. Other users can neither guess its name nor open it.
    """
    for parent in {SHARED_MEMORY, run, Path(chosen or run).expanduser()}:  # where an earlier start made it
        for leftover in filter(_is_ours, parent.glob(f"{_root_name(run)}*")):
            _remove(leftover)
    parent = _choose_parent(chosen, run, version_bytes)
    with naming(parent):
        parent.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix=f"{_root_name(run)}-", dir=parent))
    try:
        yield root
    finally:
        _remove(root)


def _choose_parent(chosen: str, run: Path, version_bytes: int) -> Path:
    if chosen:
        return Path(chosen).expanduser()
    versions = KEPT_VERSIONS + 1  # the next one is written before the oldest is removed
    if SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= versions * version_bytes:
        return SHARED_MEMORY
    return run


def _root_name(run: Path) -> str:
    """The beginning, different for each run folder: several runs may share the memory of a machine."""
    return f"arpo-weights-{hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:16]}"


def _is_ours(folder: Path) -> bool:
    """Whether it is a folder, and nobody else made it in a place where all users may write."""
    state = folder.lstat()
    shared = folder.parent.stat().st_mode & stat.S_IWOTH
    return stat.S_ISDIR(state.st_mode) and (state.st_uid == os.geteuid() or not shared)


def _versions(root: Path) -> list[int]:
    return [int(match[1]) for path in root.glob("version-*") if (match := _FOLDER.fullmatch(path.name))]


def _synced_size(path: Path) -> int:
    """Bytes of the file, after they have reached the disk: the marker must not be there before them."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


def _remove(folder: Path) -> None:
    """Remove a folder of this module, if it exists. The marker goes first: no reader sees a part."""
    if folder.is_dir():
        (folder / MARKER).unlink(missing_ok=True)
        shutil.rmtree(folder)
