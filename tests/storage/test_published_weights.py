import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.errors import UserError
from arpo.storage import published_weights
from arpo.storage.published_weights import (
    MARKER,
    Probe,
    PublishedWeights,
    newest_published,
    publishing,
    read_published,
    version_folder,
    weights_root,
    write_probe,
)
from arpo.testing import screenshot

PROBE = Probe(token_ids=(1, 9, 9, 5), images=(screenshot(7),), answer=(6, 2), logprobs=(-0.25, -1e-17))


def publish(root, version):
    with publishing(root, version) as folder:
        (folder / "model.safetensors").write_bytes(b"weights %d" % version)
        write_probe(folder, PROBE)


def newest(root: Path) -> PublishedWeights:
    found = newest_published(root)
    assert found is not None
    return found


def test_a_version_exists_when_it_is_complete(tmp_path):
    with publishing(tmp_path, 7) as folder:
        assert folder == tmp_path / "version-000007"
        write_probe(folder, PROBE)
        (folder / "model.safetensors").write_bytes(b"12345")
        assert newest_published(tmp_path) is None
    published = PublishedWeights(version=7, folder=folder, files=("model.safetensors", "probe.json"))
    assert newest_published(tmp_path) == read_published(folder) == published
    marker = json.loads((folder / MARKER).read_text())
    assert (marker["version"], marker["files"]["model.safetensors"]) == (7, 5)
    assert set(marker["files"]) == {"model.safetensors", "probe.json"}
    assert published.probe() == PROBE
    assert not published.has_adapters


def test_adapters_are_told_from_a_model(tmp_path):
    with publishing(tmp_path, 0) as folder:
        (folder / "adapter_model.safetensors").write_bytes(b"")
    assert newest(tmp_path).has_adapters


def test_the_newest_two_versions_are_kept(tmp_path):
    for version in (3, 4, 5):
        publish(tmp_path, version)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["version-000004", "version-000005"]
    assert newest(tmp_path).version == 5


def test_a_failed_version_leaves_nothing_and_keeps_the_older_ones(tmp_path):
    publish(tmp_path, 3)
    with pytest.raises(OSError, match=r"No space left.*version-000004"), publishing(tmp_path, 4) as folder:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left")
    assert not folder.exists()
    assert newest(tmp_path).version == 3


KILLED = """
import os, signal, sys
from pathlib import Path
from arpo.storage.published_weights import publishing

with publishing(Path(sys.argv[1]), 4) as folder:
    (folder / "model.safetensors").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_no_version(tmp_path):
    """Its folder has no marker. The resumed run writes the version again."""
    publish(tmp_path, 3)
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (version_folder(tmp_path, 4) / "model.safetensors").read_bytes() == b"half"
    assert newest(tmp_path).version == 3
    publish(tmp_path, 4)
    assert newest(tmp_path).version == 4
    assert (version_folder(tmp_path, 4) / "model.safetensors").read_bytes() == b"weights 4"


@pytest.mark.parametrize("marker", ["", "[]", '{"version": 3}', '{"version": 3, "files": [1]}'])
def test_a_damaged_marker_is_no_version(tmp_path, marker):
    publish(tmp_path, 3)
    (version_folder(tmp_path, 3) / MARKER).write_text(marker)
    assert newest_published(tmp_path) is None


def test_a_file_of_another_size_is_no_version(tmp_path):
    publish(tmp_path, 3)
    (version_folder(tmp_path, 3) / "model.safetensors").write_bytes(b"short")
    assert newest_published(tmp_path) is None


def test_only_listed_files_are_read(tmp_path):
    publish(tmp_path, 3)
    published = newest(tmp_path)
    (published.folder / "other.safetensors").write_bytes(b"not ours")
    (published.folder / "checksums-9.json").write_text('{"other": 1}')
    assert newest(tmp_path).tensor_files == [published.folder / "model.safetensors"]
    with pytest.raises(UserError, match=r"has no checksums\.json"):
        newest(tmp_path).checksums()


@pytest.mark.parametrize("name", ["../outside", "link"])
def test_a_listed_file_elsewhere_is_no_version(tmp_path, name):
    (tmp_path / "outside").write_bytes(b"12345")
    with publishing(tmp_path, 3) as folder:
        (folder / "link").symlink_to(tmp_path / "outside")
    (folder / MARKER).write_text(json.dumps({"version": 3, "files": {name: 5}}))
    assert newest_published(tmp_path) is None


def test_a_damaged_probe_names_its_file(tmp_path):
    publish(tmp_path, 3)
    published = newest(tmp_path)
    path = published.folder / "probe.json"
    path.write_text('{"token_ids": [1], "images": [], "answer": [2, 3], "logprobs": [-1.0]}')
    with pytest.raises(UserError, match=f"{path}: damaged, 2 answer tokens and 1 log-prob"):
        published.probe()


def test_the_root_is_in_shared_memory_if_three_versions_fit(tmp_path, monkeypatch):
    memory, run = tmp_path / "memory", tmp_path / "run"
    memory.mkdir()
    monkeypatch.setattr(published_weights, "SHARED_MEMORY", memory)
    monkeypatch.setattr(published_weights.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 300}))
    with weights_root("", run, 100) as root:
        assert root.parent == memory
    with weights_root("", run, 101) as root:
        assert root.parent == run
    with weights_root(str(tmp_path / "own"), run, 101) as root:
        assert root.parent == tmp_path / "own"
    assert not any([*memory.iterdir(), *run.iterdir()])


def test_the_root_of_a_killed_run_is_removed_at_the_next_start(tmp_path, monkeypatch):
    memory, run, other = tmp_path / "memory", tmp_path / "run", tmp_path / "other"
    memory.mkdir()
    monkeypatch.setattr(published_weights, "SHARED_MEMORY", memory)
    with weights_root("", run, 1) as leftover, weights_root("", other, 1) as of_other_run:
        publish(leftover, 3)
        with weights_root(str(tmp_path / "own"), run, 1) as root:
            assert newest_published(root) is None
            assert (leftover.exists(), of_other_run.exists()) == (False, True)


def test_nobody_can_prepare_the_root(tmp_path, monkeypatch):
    """Its name cannot be guessed; what others made in shared memory is neither used nor removed."""
    memory, run, target = tmp_path / "memory", tmp_path / "run", tmp_path / "target"
    memory.mkdir()
    memory.chmod(0o1777)
    kept = target / "kept"
    kept.mkdir(parents=True)
    monkeypatch.setattr(published_weights, "SHARED_MEMORY", memory)
    with weights_root("", run, 1) as first:
        prefix = first.name.rpartition("-")[0]
        assert first.stat().st_mode & 0o777 == 0o700
    (memory / f"{prefix}-link").symlink_to(target)
    (memory / f"{prefix}-theirs").mkdir()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with weights_root("", run, 1) as second:
        assert second.name != first.name
    assert kept.exists() and (memory / f"{prefix}-theirs").exists()
