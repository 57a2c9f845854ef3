"""The static site of `arpo view --export`: the same front end, with the data of chosen episodes in scripts.

It opens from a file, without a server: the answers to all requests are in one table, by their paths, and the
screenshots are files. What was not chosen is not in the folder.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from arpo.errors import UserError
from arpo.viewer.app.library import Library, finite
from arpo.viewer.app.run_source import RunSource, encode_part
from arpo.viewer.app.server import PAGE, STATIC
from arpo.viewer.app.source import Json, Source

EXPORT = "export.js"  # of the front end: says that there is no export
DATA_LINE = "<!-- export data -->"
DEFAULT_EPISODES = "size=50&sort=-order"
MAX_EPISODES = 200  # of each source
_CHUNK = 4 << 20  # characters of one data file
_FILE_TYPES = {"image/png": "png", "image/webp": "webp", "image/jpeg": "jpg"}


def write_export(library: Library, folder: Path, episodes: str) -> int:
    """Write the site into a new or empty folder. Returns the number of episodes.

    `episodes` are filters as in the address of the list of episodes: "task=pool-040&solved=0&size=20".
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is not empty: choose a new folder for --export")
    filters = dict(parse_qsl(episodes or DEFAULT_EPISODES, keep_blank_values=True))
    while not library.refresh(1.0):
        pass
    folder.mkdir(parents=True, exist_ok=True)
    site = _Site(folder)
    count = 0
    listed = library.answer(["sources"], {})
    site.add(["sources"], {**listed, "export": True, "sources": [_settled(one) for one in listed["sources"]]})
    for number, source in enumerate(library.sources.values()):
        chosen = source.episodes({**filters, "size": filters.get("size", str(MAX_EPISODES))})
        count += len(chosen["episodes"])
        _add_source(site, library, source, number, chosen)
    site.finish()
    return count


def _settled(entry: Json) -> Json:
    return {**entry, "live": False, "indexing": None}


class _Site:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table: dict[str, str] = {}  # JSON text by path

    def add(self, parts: Iterable[str], answer: Any) -> None:
        self._table["/api/" + "/".join(map(encode_part, parts))] = _script_json(answer)

    def add_picture(self, source: Source, number: int, shot: Mapping[str, Any]) -> None:
        """Write the file of a screenshot, once. A damaged one is left out."""
        if not shot.get("url") or shot["url"] in self._table:
            return
        with suppress(UserError, OSError):
            picture = source.picture(shot["shot"])
            safe = re.sub(r"[^\w.-]", "_", shot["shot"])[-120:]
            file = f"shots/{number}/{safe}.{_FILE_TYPES[picture.media_type]}"
            path = self._folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(picture.content)
            self._table[shot["url"]] = _script_json({"file": file})

    def finish(self) -> None:
        """Write the data files and the front end."""
        shutil.copytree(STATIC, self._folder / "static", ignore=shutil.ignore_patterns(PAGE))
        (self._folder / "static" / EXPORT).write_text("window.ARPO_EXPORT = {};\n", "utf-8")
        (self._folder / "data").mkdir()
        names = []
        for number, lines in enumerate(_chunks(self._table)):
            names.append(f"data/{number}.js")
            text = "".join(f"window.ARPO_EXPORT[{key}] = {value};\n" for key, value in lines)
            (self._folder / names[-1]).write_text(text, "utf-8")
        page = (STATIC / PAGE).read_text("utf-8")
        assert DATA_LINE in page
        scripts = "\n".join(f'<script src="{name}" defer></script>' for name in names)
        (self._folder / PAGE).write_text(page.replace(DATA_LINE, scripts), "utf-8")


def _chunks(table: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    part: list[tuple[str, str]] = []
    for path, value in table.items():
        part.append((_script_json(path), value))
        if sum(len(text) for _, text in part) > _CHUNK:
            yield part
            part = []
    if part:
        yield part


def _script_json(value: Any) -> str:
    """JSON that is safe within a script file: ASCII only, and no "</script>"."""
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _add_source(site: _Site, library: Library, source: Source, number: int, chosen: Json) -> None:
    own = ["s", source.identity.id]
    rows = chosen["episodes"]

    def copy(*parts: str) -> Json:
        with suppress(UserError, OSError):
            answer = library.answer([*own, *parts], {})
            site.add([*own, *parts], answer)
            return answer
        return {}

    site.add([*own, "episodes"], {**chosen, "total": len(rows), "page": 0})
    for name in ("tasks", "failures"):
        copy(name)
    if isinstance(source, RunSource):
        for name in ("metrics", "timeline", "recipe", "batches"):
            copy(name)
    for task in dict.fromkeys(row["task"] for row in rows):
        copy("tasks", task)
    grouped = [row for row in rows if row["batch"] is not None]
    for batch in dict.fromkeys(str(row["batch"]) for row in grouped):
        copy("batches", batch)
    for group in dict.fromkeys(row["group"] for row in grouped):
        for member in copy("groups", group).get("members", ()):
            _add_steps(site, source, number, member["steps_list"])
    for row in rows:
        episode = copy("episodes", row["episode"])
        steps = episode.get("steps_list", ())
        _add_steps(site, source, number, steps)
        final = episode.get("final") or {}
        site.add_picture(source, number, final)
        for step in steps:
            if step["has_tokens"]:
                copy("episodes", row["episode"], "tokens", str(step["step"]))
        shots = [step["shot"]["shot"] for step in steps if step["shot"] and step["shot"]["url"]]
        shots += [final["shot"]] if final.get("url") else []
        for before, after in pairwise(shots):
            copy("shots", after, "difference", before)


def _add_steps(site: _Site, source: Source, number: int, steps: Iterable[Json]) -> None:
    for step in steps:
        site.add_picture(source, number, step["shot"] or {})
