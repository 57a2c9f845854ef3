"""One run, collection or folder of OSWorld results, as the pages of the browser see it.

Each page is a function from the index and the files to JSON. `Source` has the pages of all kinds.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from arpo.config.task_set_names import set_label
from arpo.errors import UserError
from arpo.viewer.files import SafeFolder
from arpo.viewer.index import Index
from arpo.viewer.pages.episodes import (
    COLUMNS,
    Listing,
    find_episode,
    list_episodes,
    list_failures,
    neighbours,
    row_json,
)
from arpo.viewer.pictures import Picture, PixelCache, thumbnail
from arpo.viewer.run_index import problems

Json = dict[str, Any]
NOT_STORED = {"logprob": False, "entropy": False, "ratio": False, "clipped": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Name and position of a source. `shown` is the folder for commands, relative to the current one."""

    id: str
    kind: str  # run, collected or osworld
    shown: str
    comparison: str | None = None
    method: str | None = None
    seed: int | None = None


class Source(ABC):
    """`refresh` reads new files; all other methods only read the index, and one episode."""

    def __init__(self, identity: Identity, folder: SafeFolder, cache: PixelCache) -> None:
        self.identity, self.folder = identity, folder
        self.index = Index(folder.root)
        self.complete = False  # whether everything is indexed
        self._error = ""  # of the last refresh
        self._cache = cache
        self._refreshing = threading.Lock()

    # What a kind of source adds.

    listing: Listing

    @abstractmethod
    def _refresh(self, deadline: float) -> bool: ...

    @abstractmethod
    def stamp(self) -> str:
        """Another text after each visible change of the files."""

    @abstractmethod
    def facts(self) -> Json:
        """subtitle, live, finished, batches, success, share indexed, and errors."""

    @abstractmethod
    def episode_details(self, row: sqlite3.Row) -> Json:
        """steps_list, final, and what only this kind knows about an episode."""

    @abstractmethod
    def picture(self, shot: str) -> Picture: ...

    @abstractmethod
    def pixels(self, shot: str) -> np.ndarray: ...

    def is_outdated(self) -> bool:
        """Whether the source must be opened again, because its recipe changed."""
        return False

    def close(self) -> None:
        self.index.close()

    # Pages of all kinds.

    def refresh(self, seconds: float) -> bool:
        """Index new content for up to this time. Returns whether everything is indexed.

        A file that cannot be read becomes an error entry, and keeps no other source waiting.
        """
        if not self._refreshing.acquire(blocking=False):
            return self.complete
        try:
            before, self._error = self.complete, ""
            self.complete = self._refresh(time.monotonic() + seconds)
            if self.complete and not before:
                self.index.shrink()
        except (UserError, OSError, sqlite3.Error) as error:
            self.complete, self._error = True, str(error)
        finally:
            self._refreshing.release()
        return self.complete

    def entry(self) -> Json:
        identity = self.identity
        facts = self.facts()
        share = facts.pop("share")
        return {
            "id": identity.id,
            "kind": identity.kind,
            "folder": identity.shown,
            "title": identity.id.rpartition("/")[2] or identity.id,
            "comparison": identity.comparison,
            "method": identity.method,
            "seed": identity.seed,
            "episodes": self._count("episodes"),
            "failures": self._count("failures"),
            "indexing": None if self.complete else {"share": share},
            "sets": {name: set_label(name) for rates in facts["success"].values() for name in rates},
            "stamp": _hash(f"{self.stamp()} {self.complete} {share} {self._error}"),
            **facts,
            "errors": [*filter(None, [self._error]), *facts["errors"], *problems(self.index)],
        }

    def _count(self, table: str) -> int:
        row = self.index.row(f"SELECT count(*) AS count FROM {table}")
        return row["count"] if row else 0

    def episodes(self, filters: Mapping[str, str]) -> Json:
        return {**list_episodes(self.listing, filters), "complete": self.complete}

    def episode(self, name: str) -> Json:
        row = find_episode(self.index, name)
        return {
            **row_json(self.listing, row),
            **neighbours(self.index, row),
            "reward": None,
            "advantage": None,
            "replaced_by": None,
            "task_set": None,
            **self.episode_details(row),
        }

    def failures(self) -> Json:
        return list_failures(self.index)

    def tokens(self, name: str, step: int, trained: int | None = None) -> Json:
        raise UserError("the tokens of these episodes are not stored")

    def small_picture(self, shot: str, width: int) -> Picture:
        return thumbnail(self.pixels(shot), width)

    def tasks(self) -> Json:
        return {"evaluations": [], "complete": self.complete, "tasks": self._task_rows({})}

    def task(self, name: str) -> Json:
        rows = self.index.rows(
            f"SELECT {COLUMNS} FROM episodes WHERE task = ? ORDER BY n DESC LIMIT 50", (name,)
        )
        if not rows:
            raise UserError(f"{name!r}: no episode of this task, or it is not indexed yet")
        found = next((row for row in self.tasks()["tasks"] if row["task"] == name), {"task": name})
        return {
            **found,
            "curve": [],
            "evaluations": [],
            "before_episode": None,
            "after_episode": None,
            "episodes": [row_json(self.listing, row) for row in rows],
        }

    def _task_rows(self, evaluated: Mapping[str, Json]) -> list[Json]:
        """One entry per task, the hardest first: by the newest success rate that is known."""
        counted = {
            row["task"]: row
            for row in self.index.rows(
                "SELECT task, count(*) AS trained, sum(coalesce(score, 0) >= ?) AS solved FROM episodes "
                "WHERE kind != 'eval' GROUP BY task",
                (self.listing.threshold,),
            )
        }
        failed = {
            row["task"]: row["count"]
            for row in self.index.rows("SELECT task, count(*) AS count FROM failures GROUP BY task")
        }
        tasks = []
        for name in dict.fromkeys([*counted, *evaluated, *failed]):
            row = counted.get(name)
            tasks.append(
                {
                    "task": name,
                    "instruction": self.listing.instruction(name),
                    "task_set": None,
                    "before": None,
                    "after": None,
                    "change": None,
                    "trained": row["trained"] if row else 0,
                    "solved": row["solved"] if row else 0,
                    "rescued": 0,
                    "failures": failed.get(name, 0),
                    **evaluated.get(name, {}),
                }
            )
        return sorted(tasks, key=_difficulty)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _difficulty(task: Mapping[str, Any]) -> tuple[float, str]:
    trained = task["solved"] / task["trained"] if task["trained"] else None
    rates: Sequence[float | None] = (task["after"], task["before"], trained)
    return next((rate for rate in rates if rate is not None), 1.0), task["task"]


def checked_sha256(name: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", name):
        raise UserError("a screenshot is named by 64 hexadecimal digits")
    return name
