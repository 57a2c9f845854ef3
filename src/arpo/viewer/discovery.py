"""Finds runs, collections, comparisons and OSWorld results in the folders given to `arpo view`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from arpo.errors import UserError
from arpo.evaluation.osworld_results import RESULT, STEPS
from arpo.storage.run_folder import METRICS, RECIPE, TRAJECTORIES
from arpo.viewer.files import SafeFolder
from arpo.viewer.source import Identity

MAX_FOLDERS = 20_000  # visited in one search
MAX_SOURCES = 300  # each has open files
MAX_DEPTH = 8
_SKIPPED = {"checkpoints", "model", "tensorboard", "evaluating", "node_modules", "__pycache__"}
_SEED = re.compile(r"seed-(\d{1,4})")


def find_sources(folders: Sequence[Path]) -> Iterator[tuple[Identity, Path]]:
    """All sources in the folders, each with its path, in the order of the folders and of their names.

    Raises UserError for a missing folder.
    """
    taken: set[str] = set()
    seen: set[Path] = set()
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"{folder}: no such folder: give the folder of a run, or of several")
        for kind, path in _walk(folder):
            if path.resolve() in seen or len(seen) >= MAX_SOURCES:
                continue
            seen.add(path.resolve())
            yield _identity(kind, path, folder, taken), path


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    """(kind, folder) of everything below `root`, links excluded."""
    safe = SafeFolder(root)
    waiting, visited, trials = [""], 0, dict[str, None]()
    while waiting and visited < MAX_FOLDERS:
        name = waiting.pop()
        visited += 1
        folders, files = safe.list(name)
        if RECIPE in files and {TRAJECTORIES, METRICS} & set(files):
            yield "run", root / name
        elif {RESULT, STEPS} & set(files):
            trials.setdefault("/".join(name.split("/")[:-2]))
        elif name.count("/") < MAX_DEPTH:
            inner = [folder for folder in folders if folder not in _SKIPPED]
            waiting += [f"{name}/{folder}" if name else folder for folder in reversed(inner)]
    for name in trials:
        yield "osworld", root / name


def _identity(kind: str, path: Path, root: Path, taken: set[str]) -> Identity:
    base = root.resolve().name or "root"
    relative = os.path.relpath(path, root)
    name = base if relative == "." else relative
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}~{number}"
    taken.add(unique)
    seed = _SEED.fullmatch(path.name)
    comparison = os.path.normpath(path.parent.parent) if seed else None
    return Identity(
        id=unique,
        kind=_collected_or(kind, path),
        shown=os.path.normpath(path),
        comparison=comparison,
        method=path.parent.name if seed else None,
        seed=int(seed[1]) if seed else None,
    )


def _collected_or(kind: str, path: Path) -> str:
    """A run folder whose first episode is a collected one is a collection."""
    if kind != "run":
        return kind
    try:
        with SafeFolder(path).open(TRAJECTORIES) as descriptor:
            return "collected" if os.pread(descriptor, 40, 0).startswith(b'{"episode_id":"collect-') else kind
    except (OSError, UserError):
        return kind
