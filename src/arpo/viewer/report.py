"""The report of a run: report.html, the pages of `arpo view` about one run in a single file.

It opens from a file, loads nothing, and its content policy allows its own script alone, by hash. Text from
the model is data of that script, and is inserted as text.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shlex
import sqlite3
from pathlib import Path

from arpo.errors import UserError
from arpo.storage.run_folder import RECIPE, write_atomically
from arpo.viewer.discovery import identify
from arpo.viewer.library import Library
from arpo.viewer.pages.episodes import find_episode, row_json
from arpo.viewer.pictures import Picture, compact
from arpo.viewer.run_source import RunSource, encode_part
from arpo.viewer.site import EXPORT, PAGE, STATIC, Site, add_source, add_sources, index_all
from arpo.viewer.source import Json, Source

REPORT, COMPARISON = "report.html", "compare.html"
POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def write_report(run_folder: Path, episodes: str = "") -> Path:
    """Write report.html into a run folder, finished or not. Returns the path of the report.

    `episodes` is the value of `arpo report --episodes`, as in "task:pool-040,failed:3"; "": the default.
    """
    if not (run_folder / RECIPE).is_file():
        raise UserError(f"{run_folder}: not a run folder: {RECIPE} is missing: give the folder of a run")
    identity = identify(run_folder)
    library = Library([], f"arpo view {shlex.quote(identity.shown)}")
    try:
        source = library.add(identity, run_folder)
        assert isinstance(source, RunSource)
        page = _page(library, source, episodes)
    except sqlite3.Error as error:
        raise UserError(f"{run_folder}: the report cannot be made: {error}: check the disk") from error
    finally:
        library.close()
    write_atomically(run_folder / REPORT, page)
    return run_folder / REPORT


def write_comparison(out: Path, page: Json) -> Path:
    """Write compare.html: the page "Comparison" in a single file. Returns its path."""
    site, name = _FileSite(), os.path.normpath(out)
    site.add(["comparison", name], page)
    listed = {"sources": [], "errors": [], "command": f"arpo view {shlex.quote(name)}", "export": True}
    site.add(["sources"], {**listed, "start": f"/comparison/{encode_part(name)}"})
    write_atomically(out / COMPARISON, _one_file(site))
    return out / COMPARISON


def _page(library: Library, source: RunSource, episodes: str) -> str:
    own = source.identity.id
    source.recipe()  # raises UserError if it cannot be read
    index_all(library)
    report = source.report(episodes)
    names = dict.fromkeys(name for shown in report["episodes"]["shown"] for name in shown)
    rows = [row_json(source.listing, find_episode(source.index, name)) for name in names]
    site = _FileSite()
    add_sources(site, library, start=f"/s/{encode_part(own)}/report")
    chosen = {**source.episodes({"size": "1"}), "episodes": rows}
    add_source(site, library, source, chosen, groups=False, report=report)
    return _one_file(site)


class _FileSite(Site):
    def place(self, source: Source, shot: str) -> str:
        return _data_url(compact(source.picture(shot), lambda: source.pixels(shot)))


def _data_url(picture: Picture) -> str:
    return f"data:{picture.media_type};base64,{base64.b64encode(picture.content).decode()}"


def _one_file(site: Site) -> str:
    """The page of the front end with its styles, scripts and icon in place of the links to them."""
    page = (STATIC / PAGE).read_text("utf-8")
    style = "".join(_static(name) for name in re.findall(r'<link rel="stylesheet" href="static/(.*)">', page))
    names = re.findall(r'<script src="static/(.*)" defer></script>', page)
    scripts = [_static(name) for name in names if name != EXPORT]
    script = "".join(["window.ARPO_EXPORT = {};\n", *site.statements(), *scripts])
    assert "</script" not in script.lower() and "<!--" not in script and "</style" not in style.lower()
    policy = POLICY.format(script=_hash(script), style=_hash(style))
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
