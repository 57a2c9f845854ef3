"""Worker processes of Gymnasium environments."""

import sys
from pathlib import Path

from arpo.envs.gymnasium.workers import Worker


def test_a_worker_gets_no_token_of_arpo(tmp_path, monkeypatch):
    monkeypatch.setenv("ARPO_HOST_TOKEN", "0123456789abcdef")
    monkeypatch.setenv("MY_KEY", "of the environment")
    worker = Worker(sys.executable, str(tmp_path))
    try:
        variables = Path(f"/proc/{worker._child.process.pid}/environ").read_bytes().split(b"\0")
    finally:
        worker.end()
    names = {variable.partition(b"=")[0] for variable in variables}
    assert {b"MY_KEY", b"TMPDIR"} <= names and b"ARPO_HOST_TOKEN" not in names
