"""The static site: chosen episodes only, no request, and text that cannot leave its script."""

import re

import pytest

from arpo.errors import UserError
from arpo.storage.run_folder import RunFolder
from arpo.viewer.export import PAGE, STATIC, write_export
from arpo.viewer.library import Library
from markup import answers
from viewed_runs import config, make_run, played


def exported(source, folder, episodes=""):
    """The table of an export: answers by path."""
    library = Library([source])
    try:
        count = write_export(library, folder, episodes)
    finally:
        library.close()
    page = (folder / "index.html").read_text()
    scripts = re.findall(r'<script src="(data/[^"]+)"', page)
    table: dict = {}
    for script in scripts:
        table |= answers(folder / script)
    return count, table


def test_chosen_episodes_with_their_groups_and_pictures(tmp_path):
    make_run(tmp_path / "desk")
    count, table = exported(tmp_path / "desk", tmp_path / "site", "replayed=1")
    assert count == 1
    assert [row["episode"] for row in table["/api/s/desk/episodes"]["episodes"]] == ["batch-1-0-0"]
    assert {path for path in table if "/episodes/" in path and "tokens" not in path} == {
        "/api/s/desk/episodes/batch-1-0-0",
        *(f"/api/s/desk/episodes/batch-1-0-0/prompts/{step}" for step in range(1, 5)),
    }
    assert sum("/changes/" in path for path in table) == 4  # between five screenshots
    assert {"/api/s/desk/groups/batch-1-0", "/api/s/desk/batches/1", "/api/s/desk/tasks/pool-040"} <= set(
        table
    )
    assert table["/api/sources"]["export"] is True
    episode = table["/api/s/desk/episodes/batch-1-0-0"]
    file = table[episode["steps_list"][0]["shot"]["url"]]["file"]
    assert (tmp_path / "site" / file).read_bytes().startswith(b"\x89PNG")
    assert f"/api/s/desk/episodes/batch-1-0-0/tokens/{1}" in table


def test_all_files_are_relative_and_the_front_end_is_complete(tmp_path):
    make_run(tmp_path / "desk")
    exported(tmp_path / "desk", tmp_path / "site", "size=1")
    page = (tmp_path / "site" / "index.html").read_text()
    links = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert links and all((tmp_path / "site" / link).is_file() for link in links)


def test_hostile_text_cannot_end_a_script(tmp_path):
    store = RunFolder(tmp_path / "run")
    store.write_recipe(config())
    thought = "</script><script>alert(1)</script><!-- \u2028 \ud800"
    store.add_trajectory(played("batch-1-0-0", "pool-040", 1.0, thought=thought))
    store.close()
    _, table = exported(tmp_path / "run", tmp_path / "site")
    texts = [path.read_text() for path in (tmp_path / "site" / "data").iterdir()]
    assert not any("<" in text for text in texts) and all(text.isascii() for text in texts)
    assert table["/api/s/run/episodes/batch-1-0-0"]["steps_list"][0]["thought"] == thought


def test_an_unknown_filter_is_an_error(tmp_path):
    make_run(tmp_path / "run")
    with pytest.raises(UserError, match=r"--episodes: 'solve' is no filter: use task, .*solved"):
        exported(tmp_path / "run", tmp_path / "site", "solve=0")
    assert not (tmp_path / "site").exists()


def test_a_folder_with_content_is_not_overwritten(tmp_path):
    make_run(tmp_path / "desk")
    with pytest.raises(UserError, match="is not empty"):
        exported(tmp_path / "desk", tmp_path / "desk")


def test_the_pages_of_an_export_ask_for_nothing_that_it_does_not_contain(tmp_path):
    """The report of the run shows pool-040 before and after training: neither episode is exported."""
    make_run(tmp_path / "desk")
    _, table = exported(tmp_path / "desk", tmp_path / "site", "replayed=1")
    report = table["/api/s/desk/report"]
    assert report["episodes"]["shown"] == []
    assert report["batches"] == [1, 2] and {f"/api/s/desk/batches/{batch}" for batch in (1, 2)} <= set(table)
    assert [one["batch"] for one in table["/api/s/desk/lanes"]["batches"]] == [1]
    assert {path for path in table if "/lanes/" in path} == {"/api/s/desk/lanes/1"}
    tokens = table["/api/s/desk/episodes/batch-1-0-0/tokens/1"]
    assert tokens["trained"] == [{"batch": 2, "update": 1, "replayed": True, "shown": True}]


def test_the_report_of_an_export_shows_its_episodes(tmp_path):
    make_run(tmp_path / "desk")
    _, table = exported(tmp_path / "desk", tmp_path / "site")
    shown = table["/api/s/desk/report"]["episodes"]["shown"]
    assert shown[0] == ["eval0-train-0-0", "eval2-train-0-0"]


def test_every_page_has_its_data_and_its_view_under_one_name():
    data = {path.stem for path in (STATIC.parent / "pages").glob("*.py")} - {"__init__"}
    views = {path.stem for path in (STATIC / "pages").glob("*.js")}
    assert data == views == set(re.findall(r'src="static/pages/(\w+)\.js"', (STATIC / PAGE).read_text()))
