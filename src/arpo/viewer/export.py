"""The static site of `arpo view --export`: a folder with the front end, its data in scripts, and pictures.

It opens from a file, without a server.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl

from arpo.errors import UserError
from arpo.viewer.library import Library
from arpo.viewer.pages.episodes import FILTERS
from arpo.viewer.site import DATA_LINE, EXPORT, PAGE, STATIC, Site, add_source, add_sources, index_all
from arpo.viewer.source import Source

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
    if unknown := sorted(filters.keys() - set(FILTERS)):
        raise UserError(f"--episodes: {unknown[0]!r} is no filter: use {', '.join(FILTERS)}")
    index_all(library)
    folder.mkdir(parents=True, exist_ok=True)
    site = _FolderSite(folder)
    count = 0
    add_sources(site, library)
    for name in library.comparisons():
        with suppress(UserError, OSError):
            site.add(["comparison", name], library.answer(["comparison", name], {}))
    for source in library.sources.values():
        chosen = source.episodes({**filters, "size": filters.get("size", str(MAX_EPISODES))})
        count += len(chosen["episodes"])
        add_source(site, library, source, chosen, groups=True)
    site.finish()
    return count


class _FolderSite(Site):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._numbers: dict[str, int] = {}  # of the sources, which name their folders of pictures

    def place(self, source: Source, shot: str) -> str:
        picture = source.picture(shot)
        number = self._numbers.setdefault(source.identity.id, len(self._numbers))
        safe = re.sub(r"[^\w.-]", "_", shot)[-120:]
        file = f"shots/{number}/{safe}.{_FILE_TYPES[picture.media_type]}"
        path = self._folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture.content)
        return file

    def finish(self) -> None:
        """Write the data files and the front end."""
        shutil.copytree(STATIC, self._folder / "static", ignore=shutil.ignore_patterns(PAGE))
        (self._folder / "static" / EXPORT).write_text("window.ARPO_EXPORT = {};\n", "utf-8")
        (self._folder / "data").mkdir()
        names = []
        for number, text in enumerate(_chunks(self.statements())):
            names.append(f"data/{number}.js")
            (self._folder / names[-1]).write_text(text, "utf-8")
        page = (STATIC / PAGE).read_text("utf-8")
        assert DATA_LINE in page
        scripts = "\n".join(f'<script src="{name}" defer></script>' for name in names)
        (self._folder / PAGE).write_text(page.replace(DATA_LINE, scripts), "utf-8")


def _chunks(lines: Iterable[str]) -> Iterator[str]:
    part: list[str] = []
    size = 0
    for line in lines:
        part.append(line)
        size += len(line)
        if size > _CHUNK:
            yield "".join(part)
            part, size = [], 0
    if part:
        yield "".join(part)
