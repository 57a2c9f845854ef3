"""Reading and writing files: every fault names the file."""

import errno
import json
import os
import subprocess
import sys

import pytest

from arpo.errors import UserError
from arpo.storage.files import MAX_DEPTH, damage, lock_folder, read_json, read_lines, write_atomically


def nested(depth):
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize(
    "line", [b'{"step":', b"3", b"\xff\xfe", nested(100_000), b'{"a":' + b"9" * 5000 + b"}", b""]
)
def test_a_damaged_record_is_reported_with_its_line(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step":1}\n' + line + b'\n{"torn')
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2: damaged, .*: restore the file, or remove"):
        list(read_lines(path))
    path.write_bytes(line)
    with pytest.raises(UserError, match=r"metrics\.jsonl: damaged, .*: restore the file, or remove the run"):
        read_json(path)


def test_a_document_that_could_not_be_written_again_is_refused(tmp_path):
    path = tmp_path / "summary.json"
    path.write_bytes(nested(MAX_DEPTH))
    assert read_json(path)
    path.write_bytes(nested(MAX_DEPTH + 1))
    with pytest.raises(UserError, match=r"summary\.json: damaged, nested too deeply"):
        read_json(path)


def test_a_failed_write_keeps_the_old_content_and_no_part_of_the_new(tmp_path):
    path = tmp_path / "summary.json"
    write_atomically(path, "old")
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom arpo.storage.files import write_atomically\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: write_atomically(Path(sys.argv[1]), 'new' * 1000)\n"
        "except OSError as error: print(error.errno, error.filename)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{errno.EFBIG} {path}\n"
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    (tmp_path / "summary.json").mkdir()
    with pytest.raises(IsADirectoryError) as caught:
        write_atomically(tmp_path / "summary.json", json.dumps({}))
    assert caught.value.filename == str(tmp_path / "summary.json")
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "run", "/proc/run", "/sys/kernel/run"):
        with pytest.raises(
            UserError, match=r"/run: the folder of the run cannot be written: .*: choose another"
        ):
            lock_folder(tmp_path / folder, "run", "--run.dir")


def test_a_value_error_is_damage_and_every_other_error_is_ours():
    with pytest.raises(UserError, match=r"summary\.json: damaged, no 'a': restore"), damage("summary.json"):
        raise ValueError("no 'a'")
    for error in (KeyError("a"), AttributeError("a"), TypeError("a"), IndexError("a"), RecursionError("a")):
        with pytest.raises(type(error)), damage("summary.json"):
            raise error
