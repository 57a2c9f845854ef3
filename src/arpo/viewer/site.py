"""A front end without a server: the answers to its requests are in one table, by path.

`arpo view --export` writes such a site as a folder, `arpo report` as one file. What was not chosen is in
neither.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from arpo.errors import UserError
from arpo.viewer.library import Library, finite
from arpo.viewer.run_source import RunSource, encode_part
from arpo.viewer.source import Json, Source

STATIC = Path(str(files("arpo"))) / "viewer" / "static"
PAGE = "index.html"
EXPORT = "export.js"  # of the front end: says that there is no export
DATA_LINE = "<!-- export data -->"


class Site(ABC):
    """Collects the answers and the screenshots. A kind of site stores the screenshots in its own way."""

    def __init__(self) -> None:
        self._table: dict[str, str] = {}  # JSON text by path

    def add(self, parts: Iterable[str], answer: Any) -> None:
        self._table["/api/" + "/".join(map(encode_part, parts))] = _script_json(answer)

    def add_picture(self, source: Source, shot: Mapping[str, Any]) -> None:
        """Store a screenshot, once. A damaged one is left out."""
        if not shot.get("url") or shot["url"] in self._table:
            return
        with suppress(UserError, OSError):
            self._table[shot["url"]] = _script_json({"file": self.place(source, shot["shot"])})

    @abstractmethod
    def place(self, source: Source, shot: str) -> str:
        """Store a screenshot. Returns its address."""

    def statements(self) -> Iterator[str]:
        """The table as JavaScript, one line per answer."""
        for path, value in self._table.items():
            yield f"window.ARPO_EXPORT[{_script_json(path)}] = {value};\n"


def _script_json(value: Any) -> str:
    """JSON that is safe within a script: ASCII only, and no "</script>"."""
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def index_all(library: Library) -> None:
    while not library.refresh(1.0):
        pass


def add_sources(site: Site, library: Library, start: str = "") -> None:
    """The list of runs. `start`: the first view, as in --at; "": the list itself."""
    listed = library.answer(["sources"], {})
    entries = [{**entry, "live": False, "indexing": None, "stamp": ""} for entry in listed["sources"]]
    site.add(["sources"], {**listed, "export": True, "start": start, "sources": entries})


def add_source(
    site: Site, library: Library, source: Source, chosen: Json, *, groups: bool, report: Json | None = None
) -> None:
    """All pages of a run about the chosen episodes: `chosen` is their list, as of the page "Episodes".

    `groups`: also the other episodes of their groups. `report`: the page "Report" if it was made already.
    """
    own, rows = ["s", source.identity.id], chosen["episodes"]
    grouped = [row for row in rows if row["batch"] is not None]
    names, batches = {row["episode"] for row in rows}, {row["batch"]: None for row in grouped}

    def copy(*parts: str, change: Callable[[Json], Json] = lambda answer: {}) -> Json:
        with suppress(UserError, OSError):
            answer = library.answer([*own, *parts], {})
            site.add([*own, *parts], {**answer, **change(answer)})
            return answer
        return {}

    def stored_lanes(lanes: Json) -> Json:
        return {"batches": [one for one in lanes["batches"] if one["batch"] in batches]}

    def stored_episodes(report: Json) -> Json:
        shown = [pair for pair in report["episodes"]["shown"] if names.issuperset(pair)]
        return {"episodes": {**report["episodes"], "shown": shown}}

    site.add([*own, "episodes"], {**chosen, "total": len(rows), "page": 0})
    for name in ("tasks", "failures"):
        copy(name)
    if isinstance(source, RunSource):
        copy("metrics", change=lambda _: {"generation": ""})
        for name in ("timeline", "recipe", "batches"):
            copy(name)
        copy("lanes", change=stored_lanes)
        if report is None:
            report = copy("report", change=stored_episodes)
        else:
            site.add([*own, "report"], report)
        for batch in report.get("batches", ()):
            copy("batches", str(batch))
    for task in dict.fromkeys(row["task"] for row in rows):
        copy("tasks", task)
    for batch in map(str, batches):
        copy("batches", batch)
        copy("lanes", batch, change=stored_lanes)
    for group in dict.fromkeys(row["group"] for row in grouped if groups):
        for member in copy("groups", group).get("members", ()):
            _add_steps(site, source, member["steps_list"])
    for row in rows:
        episode = copy("episodes", row["episode"])
        steps = episode.get("steps_list", ())
        _add_steps(site, source, steps)
        site.add_picture(source, episode.get("final") or {})
        for step in steps:
            if step["has_tokens"]:
                copy("episodes", row["episode"], "tokens", str(step["step"]), change=_shown_update)


def _shown_update(tokens: Json) -> Json:
    """Only the values of one update are stored."""
    return {"trained": [update for update in tokens["trained"] if update["shown"]]}


def _add_steps(site: Site, source: Source, steps: Iterable[Json]) -> None:
    for step in steps:
        site.add_picture(source, step["shot"] or {})
