"""Files of a folder that somebody else made: no link is followed, and growing files are read further."""

import os

import pytest

from arpo.errors import UserError
from arpo.storage.codec import check_numbers
from arpo.viewer import files
from arpo.viewer.files import Log, Mark, SafeFolder, complete_lines


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    inner = tmp_path / "run"
    (inner / "sub").mkdir(parents=True)
    (inner / "a.json").write_text('{"a": 1}')
    (inner / "sub" / "b.txt").write_text("bee")
    return SafeFolder(inner)


def test_files_inside_are_read(folder):
    assert folder.read("sub/b.txt") == b"bee"
    assert folder.read_json("a.json") == {"a": 1}
    assert folder.list() == (["sub"], ["a.json"])


@pytest.mark.parametrize(
    "name", ["../secret.txt", "sub/../../secret.txt", "/etc/passwd", "sub/./b.txt", "a\0b"]
)
def test_a_path_that_leads_out_is_refused(folder, name):
    with pytest.raises(UserError, match="not a path inside"):
        folder.read(name)


def test_links_are_not_followed(folder):
    (folder.root / "link.txt").symlink_to(folder.root.parent / "secret.txt")
    (folder.root / "out").symlink_to(folder.root.parent)
    with pytest.raises(UserError, match="symbolic link"):
        folder.read("link.txt")
    with pytest.raises(OSError):
        folder.read("out/secret.txt")
    assert folder.list() == (["sub"], ["a.json"])
    assert folder.list("out") == ([], [])
    assert folder.stat("link.txt") is None


def test_a_pipe_does_not_block(folder):
    os.mkfifo(folder.root / "pipe")
    with pytest.raises(UserError, match="is not a file"):
        folder.read("pipe")


def test_a_large_file_is_refused(folder):
    with (folder.root / "large").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="at most 1,000"):
        folder.read("large", 1000)


def test_damaged_json_is_one_error_and_a_missing_file_is_none(folder):
    (folder.root / "deep.json").write_text("[" * 100_000)
    with pytest.raises(UserError, match="nested too deeply"):
        folder.read_json("deep.json")
    assert folder.read_json("missing.json") is None


def lines(path, at=0):
    with path.open("rb") as file:
        return list(complete_lines(file.fileno(), at))


def test_only_complete_lines_with_their_offsets(tmp_path):
    (tmp_path / "f").write_bytes(b"ab\n\ncd\nef")
    assert lines(tmp_path / "f") == [(0, 3, b"ab"), (3, 4, b""), (4, 7, b"cd")]
    assert lines(tmp_path / "f", 4) == [(4, 7, b"cd")]


def test_a_huge_line_is_skipped_and_the_next_one_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE", 10)
    monkeypatch.setattr(files, "_CHUNK", 4)
    (tmp_path / "f").write_bytes(b"x" * 35 + b"\n" + b"y" * 10 + b"\n" + b"z" * 11 + b"\nok\n")
    assert lines(tmp_path / "f") == [(0, 36, None), (36, 47, b"y" * 10), (47, 59, None), (59, 62, b"ok")]


def test_a_file_without_line_ends_comes_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE", 10)
    monkeypatch.setattr(files, "_CHUNK", 4)
    monkeypatch.setattr(files, "_PIECE", 20)
    (tmp_path / "f").write_bytes(b"x" * 47)
    assert lines(tmp_path / "f") == [(0, 20, None), (20, 40, None)]
    (tmp_path / "f").write_bytes(b"x" * 47 + b"\nok\n")
    assert lines(tmp_path / "f") == [(0, 20, None), (20, 40, None), (40, 48, None), (48, 51, b"ok")]


def test_a_log_of_a_terabyte_without_a_line_is_a_problem(log):
    write(log, "")
    os.truncate(log._folder.root / "metrics.jsonl", 1 << 40)
    log.poll()
    assert log.rows == []
    assert log.problems[0].endswith("only the first 25,165,824 bytes are shown")


@pytest.fixture
def log(tmp_path):
    return Log(SafeFolder(tmp_path), "metrics.jsonl", check_numbers)


def write(log, text, mode="w"):
    with open(log._folder.root / "metrics.jsonl", mode) as file:
        file.write(text)


def test_a_log_grows(log):
    log.poll()
    assert log.rows == [] and log.problems == []
    write(log, '{"step": 1}\n{"step"')
    log.poll()
    assert log.rows == [{"step": 1}]
    write(log, ": 2}\n", "a")
    log.poll()
    assert log.rows == [{"step": 1}, {"step": 2}]


def test_a_truncated_and_grown_log_is_read_again(log):
    write(log, '{"step": 1}\n{"step": 2, "loss": 1}\n')
    log.poll()
    write(log, '{"step": 1}\n{"step": 2, "loss": 7}\n{"step": 3}\n')
    log.poll()
    assert log.rows == [{"step": 1}, {"step": 2, "loss": 7}, {"step": 3}]
    assert log.generation == 1


def test_damaged_lines_become_problems(log):
    deep = "[" * 200 + "]" * 200
    write(
        log, f'{{"step": 1}}\nnot json\n[1]\n{{"step": "x"}}\n{{"step": 4, "deep": {deep}}}\n{{"step": 5}}\n'
    )
    log.poll()
    assert log.rows == [{"step": 1}, {"step": 5}]
    assert [problem.partition("metrics.jsonl: ")[2][:8] for problem in log.problems] == [
        "byte 12:", "byte 21:", "byte 25:", "byte 39:"
    ]  # fmt: skip


def test_a_link_in_place_of_a_log_is_a_problem(log, tmp_path):
    (tmp_path / "other").write_text('{"step": 1}\n')
    (tmp_path / "metrics.jsonl").symlink_to("other")
    log.poll()
    assert log.rows == [] and "symbolic link" in log.problems[0]


def test_a_mark_fits_a_grown_file_and_no_other(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"abc")

    def fits(mark):
        with path.open("rb") as file:
            return mark.fits(file.fileno())

    with path.open("rb") as file:
        mark = Mark.at(file.fileno(), 3)
    with path.open("ab") as file:
        file.write(b"d")
    assert fits(mark)
    os.truncate(path, 2)
    assert not fits(mark)
    path.write_bytes(b"abX")
    assert not fits(mark)
    (tmp_path / "copy").write_bytes(b"abcd")
    os.replace(tmp_path / "copy", path)
    assert not fits(mark)


def test_a_log_is_read_up_to_its_limit(log, monkeypatch):
    monkeypatch.setattr(files, "MAX_BYTES", 30)
    write(log, '{"step": 1}\n' * 4)
    log.poll()
    log.poll()
    assert len(log.rows) == 2
    assert log.problems == [f"{log._folder.path('metrics.jsonl')}: only the first 30 bytes are shown"]
