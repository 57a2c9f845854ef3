"""All sources of one `arpo view`, and the answers to the browser's requests by path.

The server and the static export use the same function, `answer`, so an exported page equals a served one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.evaluation.osworld_results import RESULT, STEPS
from arpo.storage.run_folder import METRICS, RECIPE, TRAJECTORIES
from arpo.viewer.files import SafeFolder
from arpo.viewer.index import Outdated
from arpo.viewer.osworld_source import KIND as OSWORLD
from arpo.viewer.osworld_source import OSWorldSource
from arpo.viewer.pages.batches import batch_page, batches_page
from arpo.viewer.pages.comparison import comparison_page
from arpo.viewer.pages.episode import changes_page, episode_page
from arpo.viewer.pages.episodes import episodes_page
from arpo.viewer.pages.faults import faults_page
from arpo.viewer.pages.groups import group_page
from arpo.viewer.pages.prompts import NOT_STORED, no_prompts, prompts_page
from arpo.viewer.pages.recipe import recipe_page
from arpo.viewer.pages.report import report_page
from arpo.viewer.pages.runs import metrics_page, runs_page
from arpo.viewer.pages.search import search_page
from arpo.viewer.pages.tasks import task_page, tasks_page
from arpo.viewer.pages.timeline import lanes_page, timeline_page
from arpo.viewer.pages.tokens import tokens_page
from arpo.viewer.pictures import PixelCache
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Identity, Json, Source

MAX_FOLDERS = 20_000  # visited in one search
MAX_SOURCES = 300  # each has open files
MAX_DEPTH = 8
_SKIPPED = {"checkpoints", "model", "tensorboard", "evaluating", "node_modules", "__pycache__"}
_KINDS = {b'{"episode_id":"collect-': "collected", b'{"episode_id":"play"': "played"}
_SEED = re.compile(r"seed-(\d{1,4})")
STEP_SECONDS = 0.05  # of indexing within one request, if the index is not complete
CATCH_UP_SECONDS = 1.0  # of indexing within one request, if the index does not have what is asked for


class NotFound(UserError):
    """Nothing has this address."""


class Library:
    def __init__(self, folders: Sequence[Path], command: str = "arpo view") -> None:
        self._folders, self._command = folders, command
        self._cache = PixelCache()
        self._errors: list[str] = []
        self.sources: dict[str, Source] = {}
        self.discover()

    def discover(self) -> None:
        """Find new sources, and forget removed ones. Raises UserError for a missing folder."""
        found = {identity.id: (identity, path) for identity, path in find_sources(self._folders)}
        limit = f"only the first {MAX_SOURCES} runs are shown: give the folders of fewer runs"
        self._errors = [limit] if len(found) == MAX_SOURCES else []
        for name, source in list(self.sources.items()):
            if name not in found or source.is_outdated():
                self.sources.pop(name).close()
        for name, (identity, path) in found.items():
            if name not in self.sources:
                kind = OSWorldSource if identity.kind == OSWORLD else RunSource
                self.sources[name] = kind(identity, SafeFolder(path), self._cache)
        self.sources = {name: self.sources[name] for name in found}  # in the order of the folders
        for source in self.sources.values():
            source.index.share_cache(len(self.sources))

    def refresh(self, seconds: float) -> bool:
        """Index new content of every source, each for up to this time. Returns whether all is indexed."""
        complete = [source.refresh(seconds) for source in list(self.sources.values())]
        return all(complete)

    def close(self) -> None:
        for source in self.sources.values():
            source.close()

    def source(self, name: str) -> Source:
        if name not in self.sources:
            raise NotFound(f"{name!r}: no such run")
        return self.sources[name]

    def answer(self, parts: Sequence[str], query: Mapping[str, str]) -> Json:
        """The JSON for /api/PART/PART…. Raises NotFound for an unknown address, UserError for a bad one."""
        match parts:
            case ["sources"]:
                return runs_page(list(self.sources.values()), self._errors, self._command)
            case ["search"]:
                return search_page(list(self.sources.values()), query)
            case ["comparison", folder]:
                if folder not in self.comparisons():
                    raise NotFound(f"{folder!r}: no such comparison")
                return comparison_page(self.comparisons()[folder], query.get("against"))
            case ["s", name, *rest]:
                source = self.source(name)
                if not source.complete:
                    source.refresh(STEP_SECONDS)
                try:
                    return _page(source, rest, query)
                except Outdated:  # a file was replaced meanwhile: each step of a played episode does it
                    source.catch_up(CATCH_UP_SECONDS)
                    return _page(source, rest, query)
        raise NotFound("no such address")

    def comparisons(self) -> dict[str, list[RunSource]]:
        """The sources with runs of `arpo compare`, by its folder. They include collected episodes."""
        found: dict[str, list[RunSource]] = {}
        for source in list(self.sources.values()):
            if isinstance(source, RunSource) and source.identity.comparison:
                found.setdefault(source.identity.comparison, []).append(source)
        return found


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
        yield OSWORLD, root / name


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
        kind=_kind_of(kind, path),
        shown=os.path.normpath(path),
        comparison=comparison,
        method=path.parent.name if seed else None,
        seed=int(seed[1]) if seed else None,
    )


def _kind_of(kind: str, path: Path) -> str:
    """The first episode of a run folder tells if it has collected episodes, or one that was played."""
    if kind != "run":
        return kind
    try:
        with SafeFolder(path).open(TRAJECTORIES) as descriptor:
            begin = os.pread(descriptor, 40, 0)
    except (OSError, UserError):
        return kind
    return next((kind for prefix, kind in _KINDS.items() if begin.startswith(prefix)), kind)


def _page(source: Source, rest: Sequence[str], query: Mapping[str, str]) -> Json:
    match rest:
        case ["episodes"]:
            return episodes_page(source, query)
        case ["episodes", name]:
            return episode_page(source, name)
        case ["changes", before, now]:
            return changes_page(source, before, now)
        case ["tasks"]:
            return tasks_page(source)
        case ["tasks", name]:
            return task_page(source, name)
        case ["failures"]:
            return faults_page(source)
    if not isinstance(source, RunSource):
        if rest[:1] == ["episodes"] and rest[2:3] == ["prompts"]:
            return no_prompts(_count(rest[-1]), NOT_STORED)
        raise NotFound("no such page: these are episodes without training")
    match rest:
        case ["episodes", name, "tokens", step]:
            trained = _count(query["trained"]) if "trained" in query else None
            return tokens_page(source, name, _count(step), trained)
        case ["episodes", name, "prompts", step]:
            return prompts_page(source, name, _count(step))
        case ["batches"]:
            return batches_page(source)
        case ["batches", number]:
            return batch_page(source, _count(number))
        case ["groups", name]:
            return group_page(source, name)
        case ["metrics"]:
            return metrics_page(source, _count(query.get("from", "0")))
        case ["timeline"]:
            return timeline_page(source)
        case ["lanes"]:
            return source.remember("lanes", lambda: lanes_page(source, None))
        case ["lanes", number]:
            batch = _count(number)
            return source.remember(f"lanes {batch}", lambda: lanes_page(source, batch))
        case ["recipe"]:
            return recipe_page(source)
        case ["report"]:
            return source.remember("report", lambda: report_page(source))
    raise NotFound("no such address")


def _count(text: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise UserError(f"{text[:40]!r}: must be an integer >= 0")
    return int(text)


def finite(value: Any) -> Any:
    """The value without NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if abs(value) < 1e300 else None
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return value
