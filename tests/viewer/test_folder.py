"""Files of a folder that somebody else made: no link, device or parent folder is ever read."""

import os

import pytest

from arpo.errors import UserError
from arpo.viewer.folder import SafeFolder


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
