"""The live view of `arpo train`: an address during the run, and none after it."""

from __future__ import annotations

from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import URLError
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from arpo.viewer.live import live_view
from viewed_runs import make_run


def test_the_address_shows_the_run_until_the_block_ends(tmp_path: Path) -> None:
    notes: list[str] = []
    make_run(tmp_path)
    with live_view(tmp_path, notes.append):
        (note,) = notes
        address = note.removeprefix("watch it: ")
        browser = build_opener(HTTPCookieProcessor(CookieJar()))
        browser.open(address).read()
        site = address.partition("?")[0]
        assert tmp_path.name.encode() in browser.open(f"{site}api/sources").read()
    with pytest.raises(URLError, match="refused"):
        browser.open(site)


def test_a_folder_that_cannot_be_shown_costs_only_the_view(tmp_path: Path) -> None:
    notes: list[str] = []
    with live_view(tmp_path / "missing", notes.append):
        pass
    (note,) = notes
    assert note.startswith("no live view: ") and f"arpo view {tmp_path / 'missing'}" in note
