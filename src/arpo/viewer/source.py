"""One run, collection or folder of OSWorld results: what the pages read."""

from __future__ import annotations

import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from arpo.errors import UserError
from arpo.viewer.files import SafeFolder
from arpo.viewer.index import Index
from arpo.viewer.pictures import Picture, PixelCache

Json = dict[str, Any]
MAX_REMEMBERED = 20  # answers


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

    threshold: float  # score of a success

    def __init__(self, identity: Identity, folder: SafeFolder, cache: PixelCache) -> None:
        self.identity, self.folder = identity, folder
        self.index = Index(folder.root)
        self.complete = False  # whether everything is indexed
        self.error = ""  # of the last refresh
        self._cache = cache
        self._refreshing = threading.Lock()
        self._remembered: dict[str, Json] = {}
        self._remembered_at: tuple[str, bool, int] | None = None

    @abstractmethod
    def _refresh(self, deadline: float) -> bool: ...

    @abstractmethod
    def stamp(self) -> str:
        """Another text after each visible change of the files."""

    @abstractmethod
    def facts(self) -> Json:
        """subtitle, live, finished, batches, success, share indexed, and errors."""

    @abstractmethod
    def instruction(self, task: str) -> str:
        """The instruction of a task, "" if it is not known."""

    def kinds(self, task: str) -> tuple[str, ...]:
        """What a task is about: its goal families or its domain; () if it is not known."""
        return ()

    @abstractmethod
    def steps(self, episode: str) -> tuple[list[Json], Json | None]:
        """The steps of an episode (see steps.py), and its final screenshot."""

    @abstractmethod
    def answers(self, episode: str) -> list[str]: ...

    @abstractmethod
    def size(self, shot: str) -> tuple[int, int]:
        """(width, height) of a screenshot."""

    @abstractmethod
    def picture(self, shot: str) -> Picture: ...

    @abstractmethod
    def pixels(self, shot: str) -> np.ndarray: ...

    def evaluations(self) -> list[Json]:
        """The checked lines of evaluations.jsonl."""
        return []

    def is_outdated(self) -> bool:
        """Whether the source must be opened again, because its recipe changed."""
        return False

    def close(self) -> None:
        self.index.close()

    def catch_up(self, seconds: float) -> None:
        """Index all content of now, also of a file that was replaced, or as much as this time allows."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self.refresh(left, wait=left):
                return

    def refresh(self, seconds: float, wait: float = 0) -> bool:
        """Index new content for up to this time. Returns whether everything is indexed.

        A file that cannot be read becomes an error entry, and keeps no other source waiting. `wait`: seconds
        for another thread to end its own refresh.
        """
        if not self._refreshing.acquire(timeout=wait):
            return self.complete
        try:
            before, self.error = self.complete, ""
            self.complete = self._refresh(time.monotonic() + seconds)
            if self.complete and not before:
                self.index.shrink()
        except (UserError, OSError, sqlite3.Error) as error:
            self.complete, self.error = True, str(error)
        finally:
            self._refreshing.release()
        return self.complete

    def remember(self, name: str, make: Callable[[], Json]) -> Json:
        """An answer that takes long, from memory until a file changes."""
        state = self.stamp(), self.complete, self.index.generation
        if self._remembered_at != state:
            self._remembered_at, self._remembered = state, {}
        found = self._remembered
        if name not in found:
            if len(found) >= MAX_REMEMBERED:
                found.clear()
            found[name] = make()
        return found[name]

    def shot(self, name: str) -> Json:
        """A screenshot as JSON: its size and address, or the reason why it cannot be shown."""
        shot = {"shot": name, "width": None, "height": None, "url": None, "error": ""}
        try:
            width, height = self.size(name)
        except (OSError, UserError) as error:
            return {**shot, "error": str(error)}
        url = f"/api/s/{encode_part(self.identity.id)}/shots/{encode_part(name)}"
        return {**shot, "width": width, "height": height, "url": url}


def encode_part(text: str) -> str:
    """A part of a path as encodeURIComponent of JavaScript writes it."""
    return quote(text, safe="!'()*~-_.")
