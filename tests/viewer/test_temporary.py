"""Temporary folders: those of ended processes are removed, all others stay."""

import subprocess
import sys
import tempfile

from arpo.viewer.temporary import PREFIX, TemporaryFolder, remove_stale

KILLED = """
import os, signal
from arpo.viewer.temporary import TemporaryFolder
print(TemporaryFolder().path, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_of_a_killed_process_is_removed_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    subprocess.run([sys.executable, "-c", KILLED], check=False, stdout=subprocess.DEVNULL)
    (left,) = tmp_path.iterdir()
    foreign = tmp_path / f"{PREFIX}without-a-lock"
    foreign.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(left)
    mine = TemporaryFolder()
    remove_stale()
    assert not left.exists() and mine.path.is_dir() and foreign.is_dir()
    mine.close()
    assert not mine.path.exists()
