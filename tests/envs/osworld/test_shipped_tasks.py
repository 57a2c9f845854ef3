"""Our own tasks for real desktops, as data; tests/real plays them."""

from importlib.resources import files

from arpo.config import OSWorldConfig
from arpo.envs.osworld.needs import SHIPPED, missing, needs
from arpo.envs.task_files import check_disjoint, load_tasks

TRAIN, HELDOUT = load_tasks("desktop:train"), load_tasks("desktop:heldout")
FOLDER = files("arpo") / "envs" / "osworld" / "tasks" / "files"
LARGEST = 20_000


def test_there_are_ten_and_more_of_many_applications() -> None:
    assert len(TRAIN) >= 10
    assert {task.domain for task in TRAIN} == {
        *("chrome", "gimp", "libreoffice_calc", "libreoffice_impress", "libreoffice_writer"),
        *("multi_apps", "os", "vlc"),
    }
    assert [task.id for task in TRAIN if task.evaluator["func"] == "infeasible"] == ["vlc-translate"]


def test_what_is_held_out_is_not_trained_on() -> None:
    check_disjoint(TRAIN, HELDOUT)


def test_they_need_nothing_that_is_not_shipped() -> None:
    tasks = (*TRAIN, *HELDOUT)
    assert [missing(task, OSWorldConfig()) for task in tasks] == [None] * len(tasks)
    named = {file.url.removeprefix(SHIPPED) for task in tasks for file in needs(task).files}
    assert named == {file.name for file in FOLDER.iterdir()}


def test_their_files_are_small() -> None:
    assert max(len(file.read_bytes()) for file in FOLDER.iterdir()) < LARGEST
