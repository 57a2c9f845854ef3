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
    assert main(["check-env", "desk", "--tasks.ids", "pool-023"]) == 0


@pytest.mark.parametrize("words", [["--env.name=checked_by_command:Bad"], ["--env.name", "desk"]])
def test_the_class_is_the_argument_alone(capsys, words):
    assert main(["check-env", "desk", *words]) == 2
    assert capsys.readouterr().err == (
        "arpo: error: --env.name: the argument of check-env is the class to check: write arpo check-env "
        "MODULE:CLASS, without --env.name\n"
    )


def test_a_syntax_error_is_one_readable_line(capsys, tmp_path):
    (tmp_path / "torn_env.py").write_text("class Torn:\n    x = (\n", "utf-8")
    assert main(["check-env", "torn_env:Torn", "--tasks", "tasks.json"]) == 2
    assert capsys.readouterr().err == (
        "arpo: error: env.name = 'torn_env:Torn': importing torn_env failed: SyntaxError: '(' was never "
        "closed (torn_env.py:2)\n"
    )
