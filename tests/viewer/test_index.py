"""The index file: made again when it is damaged, foreign or of another version; no link is followed."""

import os
import sqlite3
import struct

import pytest

from arpo.viewer.index import NAME, Index, add_problems, shot_key


def test_content_stays_until_the_next_start(tmp_path):
    index = Index(tmp_path)
    index.write(lambda connection: add_problems(connection, ["one"]))
    index.close()
    again = Index(tmp_path)
    assert [row["text"] for row in again.rows("SELECT text FROM problems")] == ["one"]
    again.close()


def problems_after(tmp_path):
    index = Index(tmp_path)
    try:
        return [row["text"] for row in index.rows("SELECT text FROM problems")], index.path
    finally:
        index.close()


def fill(tmp_path):
    index = Index(tmp_path)
    index.write(lambda connection: add_problems(connection, ["one"]))
    index.close()


def test_a_file_that_is_no_database_is_replaced(tmp_path):
    (tmp_path / NAME).write_bytes(b"not a database" * 1000)
    assert problems_after(tmp_path) == ([], tmp_path / NAME)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE other (a)",
        "CREATE VIEW other AS SELECT 1",
        "CREATE TRIGGER other AFTER INSERT ON problems BEGIN DELETE FROM state; END",
        "CREATE TRIGGER words_other AFTER INSERT ON problems BEGIN DELETE FROM state; END",
        "DROP TABLE shots",
        "ALTER TABLE shots ADD COLUMN other",
    ],
)
def test_other_tables_or_another_version_are_replaced(tmp_path, change):
    fill(tmp_path)
    connection = sqlite3.connect(tmp_path / NAME)
    connection.execute(change)
    connection.commit()
    connection.close()
    assert problems_after(tmp_path) == ([], tmp_path / NAME)


def test_a_damaged_page_makes_the_index_again(tmp_path):
    index = Index(tmp_path)
    index.write(lambda c: c.executemany("INSERT INTO shots VALUES (?, ?)", [(n, n) for n in range(20_000)]))
    index.close()
    with (tmp_path / NAME).open("r+b") as file:
        file.seek(20 * 4096)
        file.write(b"\xff" * 4096 * 30)
    index = Index(tmp_path)
    assert index.rows("SELECT * FROM shots") == []
    assert index.generation == 1
    assert index.rows("SELECT count(*) AS n FROM shots")[0]["n"] == 0
    index.close()


def test_a_link_is_not_written_through(tmp_path):
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / NAME).symlink_to(target)
    index = Index(tmp_path / "run")
    assert index.path is None
    index.close()
    assert target.read_text() == "mine"


def forged_journal(target, pages):
    """A journal that is left of a crash, and names `target` as its super-journal."""
    magic, page = bytes.fromhex("d9d505f920a163d7"), 4096
    name = os.fsencode(target)
    header = (magic + struct.pack(">5I", 0, 0, pages, 512, page)).ljust(512, b"\0")
    return (
        header
        + struct.pack(">I", 2**30 // page + 1)
        + name
        + struct.pack(">2I", len(name), sum(name))
        + magic
    )


def test_a_journal_deletes_no_other_file(tmp_path):
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "run").mkdir()
    fill(tmp_path / "run")
    pages = (tmp_path / "run" / NAME).stat().st_size // 4096
    (tmp_path / "run" / f"{NAME}-journal").write_bytes(forged_journal(target, pages))
    assert problems_after(tmp_path / "run") == ([], tmp_path / "run" / NAME)
    assert target.read_text() == "mine"


def test_a_journal_that_is_a_link_is_not_written_through(tmp_path):
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "run").mkdir()
    fill(tmp_path / "run")
    (tmp_path / "run" / f"{NAME}-journal").symlink_to(target)
    fill(tmp_path / "run")
    assert target.read_text() == "mine"


def test_a_second_viewer_has_its_own_index(tmp_path):
    first, second = Index(tmp_path), Index(tmp_path)
    assert (first.path, second.path) == (tmp_path / NAME, None)
    second.write(lambda connection: add_problems(connection, ["one"]))
    assert (first.count("problems"), second.count("problems")) == (0, 1)
    first.close()
    second.close()


def test_a_folder_that_cannot_be_written_has_an_index_elsewhere(tmp_path):
    os.mkdir(tmp_path / NAME)
    index = Index(tmp_path)
    assert index.path is None
    index.write(lambda connection: add_problems(connection, ["one"]))
    assert index.count("problems") == 1
    index.rebuild()
    assert index.count("problems") == 0
    index.close()


def test_a_write_for_an_earlier_generation_does_nothing(tmp_path):
    index = Index(tmp_path)
    before = index.generation
    index.rebuild()
    assert not index.write(lambda connection: add_problems(connection, ["late"]), before)
    assert index.rows("SELECT * FROM problems") == []
    index.close()


def test_the_key_of_a_screenshot_is_a_signed_number():
    assert shot_key("00000000000000ff" + "0" * 48) == 255
    assert shot_key("f" * 64) == -1


def test_all_caches_together_are_bounded(tmp_path):
    index = Index(tmp_path)
    sizes = []
    for count in (1, 3, 300):
        index.share_cache(count)
        sizes.append(-index.rows("PRAGMA cache_size")[0][0] // 1024 * count)
    assert sizes[:2] == [32, 96]  # MiB
    assert sizes[2] <= 96
    index.rebuild()
    assert index.rows("PRAGMA cache_size")[0][0] == -327  # KiB: 96 MiB / 300
    index.close()
