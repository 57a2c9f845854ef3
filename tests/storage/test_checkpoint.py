import json
import os
import shutil

import pytest

from arpo.errors import UserError
from arpo.storage.checkpoint import MANIFEST, Checkpoint, find_damage, latest, save


def writer(text):
    def write(folder):
        (folder / "learner").mkdir()
        (folder / "learner" / "weights").write_text(text * 100)
        (folder / "state.json").write_text(json.dumps({"step": text}))

    return write


def names(root):
    return sorted(path.name for path in root.iterdir())


def read(root):
    found, damaged = latest(root)
    assert found is not None
    return found.step, (found.path / "learner" / "weights").read_text()[0], len(damaged)


def test_nothing_saved_yet(tmp_path):
    assert latest(tmp_path / "checkpoints") == (None, ())


def test_the_newest_is_found_and_old_ones_are_deleted(tmp_path):
    for step in range(1, 5):
        assert save(tmp_path, step, writer(str(step)), keep=2) == Checkpoint(
            step=step, path=tmp_path / f"step-00000{step}"
        )
    assert names(tmp_path) == ["step-000003", "step-000004"]
    assert read(tmp_path) == (4, "4", 0)


def test_steps_sort_as_numbers(tmp_path):
    save(tmp_path, 999_999, writer("a"), keep=3)
    save(tmp_path, 1_000_000, writer("b"), keep=3)
    assert read(tmp_path) == (1_000_000, "b", 0)


def test_an_exception_while_writing_keeps_the_old_one(tmp_path):
    save(tmp_path, 1, writer("a"), keep=1)

    def fails(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        save(tmp_path, 2, fails, keep=1)
    assert read(tmp_path) == (1, "a", 0)
    assert names(tmp_path) == ["step-000001"]
    save(tmp_path, 2, writer("b"), keep=1)
    assert names(tmp_path) == ["step-000002"]


class Killed(BaseException):
    pass


def kill_points(monkeypatch, root, first_good):
    """Saves step 2 repeatedly, killed one system call later each time, and checks the remaining files."""
    calls = ("rename", "fsync", "open")
    for countdown in range(1, 100):
        with monkeypatch.context() as patch:
            left = [countdown]

            def counted(real, left=left):
                def call(*args, **kwargs):
                    left[0] -= 1
                    if left[0] <= 0:  # a killed process calls nothing more: no cleanup
                        raise Killed
                    return real(*args, **kwargs)

                return call

            for name in calls:
                patch.setattr(os, name, counted(getattr(os, name)))
            patch.setattr(shutil, "rmtree", counted(shutil.rmtree))
            try:
                save(root, 2, writer("b"), keep=1)
                return
            except Killed:
                pass
        yield countdown
        shutil.rmtree(root)
        shutil.copytree(first_good, root)


def test_a_kill_at_any_call_leaves_a_complete_checkpoint(tmp_path, monkeypatch):
    first_good, root = tmp_path / "first", tmp_path / "root"
    save(first_good, 1, writer("a"), keep=1)
    shutil.copytree(first_good, root)
    seen = set()
    for _ in kill_points(monkeypatch, root, first_good):
        step, letter, damaged = read(root)
        assert (step, letter, damaged) in {(1, "a", 0), (2, "b", 0)}
        seen.add(step)
        save(root, 2, writer("b"), keep=1)
        assert names(root) == ["step-000002"]
        assert read(root) == (2, "b", 0)
    assert seen == {1, 2}


@pytest.mark.parametrize("name", ["learner/weights", "state.json", MANIFEST])
@pytest.mark.parametrize("harm", ["missing", "shorter", "flipped", "empty"])
def test_a_damaged_file_is_named_and_the_previous_checkpoint_used(tmp_path, name, harm):
    save(tmp_path, 1, writer("a"), keep=2)
    save(tmp_path, 2, writer("b"), keep=2)
    path = tmp_path / "step-000002" / name
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        harmed = {"shorter": content[:-1], "flipped": b"\xff" + content[1:], "empty": b""}
        path.write_bytes(harmed[harm])
    found, damaged = latest(tmp_path)
    assert found == Checkpoint(step=1, path=tmp_path / "step-000001")
    assert len(damaged) == 1 and str(path.parent.parent if "/" in name else path.parent) in damaged[0]
    assert name in damaged[0]


def test_an_invalid_manifest_is_damage_not_a_crash(tmp_path):
    checkpoint = save(tmp_path, 1, writer("a"), keep=1)
    for text in (
        "[]",
        "{}",
        '{"step": 1}',
        '{"step": 1, "files": 3}',
        '{"step": 1, "files": {"x": 1}}',
        "\x00",
        '{"step": 1, "files": ' + "[" * 100_000,
        f'{{"step": {"9" * 5000}}}',
    ):
        (checkpoint.path / MANIFEST).write_text(text)
        assert find_damage(checkpoint)
    shutil.copytree(save(tmp_path, 1, writer("a"), keep=1).path, tmp_path / "step-000007")
    found, damaged = latest(tmp_path)
    assert found is not None and found.step == 1
    assert "belongs to step 1" in damaged[0]


def test_a_damaged_newer_checkpoint_is_deleted(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step, writer(str(step)), keep=3)
    for step in (2, 3):
        (tmp_path / f"step-00000{step}" / "state.json").write_text("?")
    assert read(tmp_path) == (1, "1", 2)
    save(tmp_path, 2, writer("2"), keep=1)
    assert names(tmp_path) == ["step-000002"]
    assert read(tmp_path) == (2, "2", 0)


def test_a_step_can_be_saved_again_after_a_kill(tmp_path):
    save(tmp_path, 1, writer("a"), keep=2)
    (tmp_path / ".tmp-old-step-000001" / "learner").mkdir(parents=True)
    save(tmp_path, 1, writer("b"), keep=2)
    assert names(tmp_path) == ["step-000001"]
    assert read(tmp_path) == (1, "b", 0)


@pytest.mark.parametrize("kind", ["file", "dangling link", "link to a folder", "link to a checkpoint"])
def test_a_file_or_link_with_the_name_of_a_checkpoint_is_refused_and_kept(tmp_path, kind):
    root, other = tmp_path / "checkpoints", tmp_path / "other"
    save(root, 1, writer("a"), keep=1)
    save(other, 2, writer("x"), keep=1)
    stray = root / "step-000002"
    if kind == "file":
        stray.write_text("mine")
    else:
        targets = {"dangling link": "nowhere", "link to a folder": "", "link to a checkpoint": "step-000002"}
        stray.symlink_to(other / targets[kind])
    with pytest.raises(
        UserError, match=r"step-000002: has the name of a checkpoint, but is (a link|not a folder): move"
    ):
        latest(root)
    with pytest.raises(FileExistsError, match=r"step-000002"):
        save(root, 2, writer("b"), keep=1)
    save(root, 3, writer("c"), keep=1)
    assert names(root) == ["step-000002", "step-000003"]
    assert read(other) == (2, "x", 0)


def test_other_names_are_ignored_and_kept(tmp_path):
    strange = ["step-abc", "step-٠٠٠٠٠٣", "step-00000000000000000000009", "step-9", "step-²²²²²²", "notes"]
    for name in strange:
        (tmp_path / name).mkdir()
    (tmp_path / "step-").write_text("mine")
    save(tmp_path, 1, writer("a"), keep=1)
    save(tmp_path, 2, writer("b"), keep=1)
    assert read(tmp_path) == (2, "b", 0)
    assert names(tmp_path) == sorted([*strange, "step-", "step-000002"])


def test_a_write_error_names_the_checkpoint(tmp_path):
    def full(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: '.*step-000002'"):
        save(tmp_path, 2, full, keep=1)
