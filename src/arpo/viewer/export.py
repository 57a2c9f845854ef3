"""Pages of `arpo view` that open without a server: a folder of `arpo view --export`, or report.html.

The answers to the requests of the front end are in one table, by path. What was not chosen is not in it. The
single file loads nothing, and its content policy allows its own script alone, by hash. Text from the model is
data of that script, and is inserted as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from arpo.errors import UserError
from arpo.storage.run_folder import RECIPE, write_atomically
from arpo.viewer.library import Library, finite
from arpo.viewer.pages.episodes import FILTERS, episode_json, episodes_page, find_episode
from arpo.viewer.pages.recipe import recipe_page
from arpo.viewer.pages.report import report_page
from arpo.viewer.pictures import Picture, compact
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json, Source, encode_part

STATIC = Path(str(files("arpo"))) / "viewer" / "static"
PAGE = "index.html"
EXPORT = "export.js"  # of the front end: says that there is no export
REPORT, COMPARISON = "report.html", "compare.html"
DEFAULT_EPISODES = "size=50&sort=-order"
MAX_EPISODES = 200  # of each source
_DATA_LINE = "<!-- export data -->"
_ANSWERS = 500  # in one data file
_FILE_TYPES = {"image/png": "png", "image/webp": "webp", "image/jpeg": "jpg"}
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def write_export(library: Library, folder: Path, episodes: str) -> int:
    """Write the site into a new or empty folder. Returns the number of episodes.

    `episodes` are filters as in the address of the list of episodes: "task=pool-040&solved=0&size=20".
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder}: is not empty: choose a new folder for --export")
    filters = dict(parse_qsl(episodes or DEFAULT_EPISODES, keep_blank_values=True))
    if unknown := sorted(filters.keys() - set(FILTERS)):
        raise UserError(f"--episodes: {unknown[0]!r} is no filter: use {', '.join(FILTERS)}")
    index_all(library)
    folder.mkdir(parents=True, exist_ok=True)
    site = _Site(partial(_store_picture, folder))
    count = 0
    _add_sources(site, library)
    for name in library.comparisons():
        with suppress(UserError, OSError):
            site.add(["comparison", name], library.answer(["comparison", name], {}))
    for source in library.sources.values():
        chosen = episodes_page(source, {**filters, "size": filters.get("size", str(MAX_EPISODES))})
        count += len(chosen["episodes"])
        _add_source(site, library, source, chosen, groups=True)
    _write_folder(site, folder)
    return count


def write_report(run_folder: Path, episodes: str = "") -> Path:
    """Write report.html into a run folder, finished or not. Returns the path of the report.

    `episodes` is the value of `arpo report --episodes`, as in "task:pool-040,failed:3"; "": the default.
    """
    if not (run_folder / RECIPE).is_file():
        raise UserError(f"{run_folder}: not a run folder: {RECIPE} is missing: give the folder of a run")
    library = Library([run_folder], f"arpo view {shlex.quote(os.path.normpath(run_folder))}")
    try:
        source = next(iter(library.sources.values()), None)
        if not isinstance(source, RunSource):
            raise UserError(f"{run_folder}: the run has no files yet: wait until it plays, or check the path")
        page = _report(library, source, episodes)
    except sqlite3.Error as error:
        raise UserError(f"{run_folder}: the report cannot be made: {error}: check the disk") from error
    finally:
        library.close()
    write_atomically(run_folder / REPORT, page)
    return run_folder / REPORT


def _report(library: Library, source: RunSource, episodes: str) -> str:
    recipe_page(source)  # raises UserError if it cannot be read
    index_all(library)
    report = report_page(source, episodes)
    names = dict.fromkeys(name for shown in report["episodes"]["shown"] for name in shown)
    rows = [episode_json(source, find_episode(source, name)) for name in names]
    site = _Site(_embed_picture)
    _add_sources(site, library, start=f"/s/{encode_part(source.identity.id)}/report")
    chosen = {**episodes_page(source, {"size": "1"}), "episodes": rows}
    _add_source(site, library, source, chosen, groups=False, report=report)
    return _one_file(site)


def write_comparison(out: Path, page: Json) -> Path:
    """Write compare.html: the page "Comparison" in a single file. Returns its path."""
    site, name = _Site(_embed_picture), os.path.normpath(out)
    site.add(["comparison", name], page)
    listed = {"sources": [], "errors": [], "command": f"arpo view {shlex.quote(name)}", "export": True}
    site.add(["sources"], {**listed, "start": f"/comparison/{encode_part(name)}"})
    write_atomically(out / COMPARISON, _one_file(site))
    return out / COMPARISON


def index_all(library: Library) -> None:
    while not library.refresh(1.0):
        pass


class _Site:
    """Collects answers and screenshots. `place` stores a screenshot of a source and returns its address."""

    def __init__(self, place: Callable[[Source, str], str]) -> None:
        self._place = place
        self._table: dict[str, str] = {}  # JSON text by path

    def add(self, parts: Iterable[str], answer: Any) -> None:
        self._table["/api/" + "/".join(map(encode_part, parts))] = _script_json(answer)

    def add_picture(self, source: Source, shot: Mapping[str, Any]) -> None:
        """Store a screenshot, once. A damaged one is left out."""
        if not shot.get("url") or shot["url"] in self._table:
            return
        with suppress(UserError, OSError):
            self._table[shot["url"]] = _script_json({"file": self._place(source, shot["shot"])})

    def statements(self) -> Iterator[str]:
        """The table as JavaScript, one line per answer."""
        for path, value in self._table.items():
            yield f"window.ARPO_EXPORT[{_script_json(path)}] = {value};\n"


def _script_json(value: Any) -> str:
    """JSON that is safe within a script: ASCII only, and no "</script>"."""
    return json.dumps(finite(value), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _add_sources(site: _Site, library: Library, start: str = "") -> None:
    """The list of runs. `start`: the first view, as in --at; "": the list itself."""
    listed = library.answer(["sources"], {})
    entries = [{**entry, "live": False, "indexing": None, "stamp": ""} for entry in listed["sources"]]
    site.add(["sources"], {**listed, "export": True, "start": start, "sources": entries})


def _add_source(
    site: _Site, library: Library, source: Source, chosen: Json, *, groups: bool, report: Json | None = None
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
        shots = [step["shot"] for step in (*steps, {"shot": episode.get("final")}) if step["shot"]]
        for before, now in pairwise(shot["shot"] for shot in shots):
            copy("changes", before, now)
        for step in steps:
            if step["has_tokens"]:
                copy("episodes", row["episode"], "tokens", str(step["step"]), change=_shown_update)
            if groups or step["step"] == 1:  # a report has the first prompt: later ones repeat it
                copy("episodes", row["episode"], "prompts", str(step["step"]))


def _shown_update(tokens: Json) -> Json:
    """Only the values of one update are stored."""
    return {"trained": [update for update in tokens["trained"] if update["shown"]]}


def _add_steps(site: _Site, source: Source, steps: Iterable[Json]) -> None:
    for step in steps:
        site.add_picture(source, step["shot"] or {})


def _store_picture(folder: Path, source: Source, shot: str) -> str:
    """Write a screenshot into a folder of its source, below `folder`. Returns its path in there."""
    picture = source.picture(shot)
    owner = hashlib.sha256(source.identity.id.encode()).hexdigest()[:12]
    safe = re.sub(r"[^\w.-]", "_", shot)[-120:]
    file = f"shots/{owner}/{safe}.{_FILE_TYPES[picture.media_type]}"
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture.content)
    return file


def _embed_picture(source: Source, shot: str) -> str:
    return _data_url(compact(source.picture(shot), lambda: source.pixels(shot)))


def _data_url(picture: Picture) -> str:
    return f"data:{picture.media_type};base64,{base64.b64encode(picture.content).decode()}"


def _write_folder(site: _Site, folder: Path) -> None:
    """Write the data files and the front end."""
    shutil.copytree(STATIC, folder / "static", ignore=shutil.ignore_patterns(PAGE))
    (folder / "static" / EXPORT).write_text("window.ARPO_EXPORT = {};\n", "utf-8")
    (folder / "data").mkdir()
    statements = list(site.statements())
    parts = [statements[at : at + _ANSWERS] for at in range(0, len(statements), _ANSWERS)]
    for number, part in enumerate(parts):
        (folder / f"data/{number}.js").write_text("".join(part), "utf-8")
    page = _static(PAGE)
    assert _DATA_LINE in page
    scripts = "\n".join(f'<script src="data/{number}.js" defer></script>' for number in range(len(parts)))
    (folder / PAGE).write_text(page.replace(_DATA_LINE, scripts), "utf-8")


def _one_file(site: _Site) -> str:
    """The page of the front end with its styles, scripts and icon in place of the links to them."""
    page = _static(PAGE)
    style = "".join(_static(name) for name in re.findall(r'<link rel="stylesheet" href="static/(.*)">', page))
    names = re.findall(r'<script src="static/(.*)" defer></script>', page)
    scripts = [_static(name) for name in names if name != EXPORT]
    script = "".join(["window.ARPO_EXPORT = {};\n", *site.statements(), *scripts])
    assert "</script" not in script.lower() and "<!--" not in script and "</style" not in style.lower()
    policy = _POLICY.format(script=_hash(script), style=_hash(style))
    page = re.sub(r'<link rel="stylesheet".*>\n|<script .*></script>\n|<!--.*-->\n', "", page)
    page = re.sub(r'(http-equiv="Content-Security-Policy" content=)"[^"]*"', rf'\1"{policy}"', page)
    icon = Picture(content=_static("icon.svg").encode(), media_type="image/svg+xml")
    page = page.replace("static/icon.svg", _data_url(icon))
    head, body = page.split("</head>")
    body = body.replace("</body>", f"<script>{script}</script>\n</body>")
    return f"{head}<style>{style}</style>\n</head>{body}"


def _static(name: str) -> str:
    return (STATIC / name).read_text("utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
