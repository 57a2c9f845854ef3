"""`arpo check-env`: its tasks, its output and its exit code."""

import json
import sys

import pytest

from arpo.cli.entry_point import main

ENV = """
from arpo.testing import FakeEnv

class Good(FakeEnv): ...

class Bad(FakeEnv):
    async def close(self):
        raise OSError("gone")
"""
TASK = {"id": "a", "instruction": "do it", "evaluator": {}}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "checked_by_command.py").write_text(ENV, "utf-8")
    (tmp_path / "tasks.json").write_text(json.dumps([TASK]), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "checked_by_command", raising=False)  # of another test's folder


@pytest.mark.parametrize("tasks", ["--tasks", "--tasks.train"])
def test_a_good_environment(capsys, tasks):
    assert main(["check-env", "checked_by_command:Good", tasks, "tasks.json"]) == 0
    marks = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert marks == ["ok"] * 5 + ["skip"] + ["ok"] * 4


def test_a_finding_is_a_line_and_an_exit_code(capsys):
    assert main(["check-env", "checked_by_command:Bad", "--tasks", "tasks.json"]) == 1
    failed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert failed == [
        "FAIL  checked_by_command.py:8: close: OSError: gone: correct this line; close() must work twice, "
        "and before start() (in 8 of 10 checks)"
    ]


def test_an_own_class_is_not_checked_with_the_tasks_of_desk(capsys):
    assert main(["check-env", "checked_by_command:Good"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "arpo: error: --tasks: checked_by_command:Good needs tasks of its own: write a file tasks.json such "
        'as [{"id": "a", "instruction": "Click OK", "config": [], "evaluator": {}}], and add --tasks '
        "tasks.json\n"
    )


def test_desk_has_tasks(capsys):
    assert main(["check-env", "desk", "--tasks.ids", "pool-001"]) == 0
