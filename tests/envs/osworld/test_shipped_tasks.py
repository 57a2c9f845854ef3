"""Our own tasks for real desktops: their data. tests/real runs them."""

from importlib.resources import files
from pathlib import Path

import pytest

from arpo.config import OSWorldConfig
from arpo.envs.osworld.needs import SHIPPED_PREFIX, needs
from arpo.envs.osworld.runnable import why_not_runnable
from arpo.tasks.lists import check_disjoint, load_tasks
from installed import install_desktop

TRAIN, HELDOUT = load_tasks("osworld:train"), load_tasks("osworld:heldout")
FOLDER = files("arpo") / "envs" / "osworld" / "tasks" / "files"
MAX_FILE_BYTES = 20_000


def test_at_least_ten_tasks_cover_all_applications() -> None:
    assert len(TRAIN) >= 10
    assert {task.domain for task in TRAIN} == {
        *("chrome", "gimp", "libreoffice_calc", "libreoffice_impress", "libreoffice_writer"),
        *("multi_apps", "os", "thunderbird", "vlc"),
    }
    assert [task.id for task in TRAIN if task.evaluator["func"] == "infeasible"] == ["vlc-translate"]


def test_train_and_heldout_are_disjoint() -> None:
    check_disjoint(TRAIN, HELDOUT)


def test_all_needed_files_are_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = (*TRAIN, *HELDOUT)
    install_desktop(monkeypatch, tmp_path / "bin")
    assert [why_not_runnable(task, OSWorldConfig()) for task in tasks] == [None] * len(tasks)
    named = {file.url.removeprefix(SHIPPED_PREFIX) for task in tasks for file in needs(task).files}
    assert named == {file.name for file in FOLDER.iterdir()}


def test_files_are_small() -> None:
    assert max(len(file.read_bytes()) for file in FOLDER.iterdir()) < MAX_FILE_BYTES
