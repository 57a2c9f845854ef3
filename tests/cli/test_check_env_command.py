"""`arpo check-env`: its tasks, its output and its exit code."""

import importlib
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
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "checked_by_command.py").write_text(ENV, "utf-8")
    (tmp_path / "tasks.json").write_text(json.dumps([TASK]), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "checked_by_command", raising=False)  # of another test's folder


@pytest.mark.parametrize("tasks", ["--tasks", "--tasks.train"])
def test_a_good_environment(capsys, tasks):
    assert main(["check-env", "checked_by_command:Good", tasks, "tasks.json"]) == 0
    *lines, size = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 5 + ["skip"] + ["ok"] * 4
    assert size == (
        "screenshots of 56x56: 4 tokens each for model.path = 'base'; 60 in an episode of 15 steps "
        "(model.max_pixels limits them)"
    )


def test_a_finding_is_a_line_and_an_exit_code(capsys):
    assert main(["check-env", "checked_by_command:Bad", "--tasks", "tasks.json"]) == 1
    lines = capsys.readouterr().out.splitlines()
    failed = (
        "FAIL  checked_by_command.py:8: close: OSError: gone: correct this line; close() must work twice, "
        "and before start()"
    )
    assert lines[0] == failed
    assert lines[3:5] == ["found again by later checks:", f"{failed} (in 8 of 10 checks)"]


def test_each_line_is_printed_when_it_is_finished(capsys, tmp_path):
    """This environment reads what was printed before its second start."""
    (tmp_path / "reading_env.py").write_text(
        "from arpo.testing import FakeEnv\n"
        "class Reading(FakeEnv):\n"
        "    printed = []\n"
        "    async def start(self, task):\n"
        "        self.printed.append(self.read())\n"
        "        return await super().start(task)\n"
    )
    reading = importlib.import_module("reading_env").Reading
    reading.read = staticmethod(lambda: capsys.readouterr().out)
    assert main(["check-env", "reading_env:Reading", "--tasks", "tasks.json"]) == 0
    assert reading.printed[:2] == ["", "ok    every task starts and returns a screenshot\n"]


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
