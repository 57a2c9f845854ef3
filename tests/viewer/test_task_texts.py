"""Instructions of tasks: shipped lists and the user's files, nothing from the viewed folder."""

import os

from arpo.config import Config, TasksConfig
from arpo.viewer.files import SafeFolder
from arpo.viewer.task_texts import TaskTexts

TASK = '[{"id": "mine", "instruction": "Do it", "evaluator": {"func": "infeasible"}}]'


def texts(folder, source):
    return TaskTexts(Config(tasks=TasksConfig(train=source, heldout="")), SafeFolder(folder))


def test_shipped_tasks_and_fresh_ones(tmp_path):
    assert texts(tmp_path, "desk:pool").instruction("pool-040").startswith("Set the language")
    assert texts(tmp_path, "desk:pool").instruction("unknown") == ""
    assert texts(tmp_path, "desk:pool").instruction("fresh-7-123-SetTheme+DeleteMail")


def test_every_held_out_set_has_instructions(tmp_path):
    (tmp_path / "more.json").write_text(TASK)
    tasks = TasksConfig(heldout=f"desk:families/validation,{tmp_path / 'more.json'}")
    found = TaskTexts(Config(tasks=tasks), SafeFolder(tmp_path / "run"))
    assert found.instruction("families_validation-000") and found.instruction("mine") == "Do it"


def test_a_file_outside_of_the_folder_is_read_and_one_inside_is_not(tmp_path):
    (tmp_path / "run").mkdir()
    for path in (tmp_path / "tasks.json", tmp_path / "run" / "tasks.json"):
        path.write_text(TASK)
    outside = texts(tmp_path / "run", str(tmp_path / "tasks.json"))
    assert (outside.instruction("mine"), outside.is_infeasible("mine")) == ("Do it", True)
    assert texts(tmp_path / "run", str(tmp_path / "run" / "tasks.json")).instruction("mine") == ""


def test_pipes_and_devices_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "/dev/zero", "a\0b"):
        assert texts(tmp_path / "run", path).instruction("mine") == ""
