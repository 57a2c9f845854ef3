"""Rules for the project: notes, paths, pinned versions, continuous integration."""

import doctest
import importlib
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BINARY_SUFFIXES = (".png", ".safetensors", ".xlsx", ".docx", ".odp", ".gz")
NOTES = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|opt|srv|mnt|tmp)/[\w.-]")
GUEST_PATH = re.compile(r"/(?:home/user|opt/arpo|opt/google|tmp/[\w.-]+)")  # paths inside a light desktop
PACKAGE_HOST = re.compile(
    "|".join(("py" + "pi", "python" + "hosted", "download.py" + "torch", "ana" + "conda"))
)


@cache
def texts():
    """Content of every text file of the project, by path."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = {}
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path.suffix not in BINARY_SUFFIXES:
            found[name] = path.read_text("utf-8")
    return found


DIALECTS = ("base", "registry", "ui_tars", "tool_calls", "literal_calls", "pyautogui_code", "glm")
DOCUMENTED = (
    "actions",
    "keyboard",
    "config.recipe",
    "cli.entry_point",
    *(f"dialects.{name}" for name in DIALECTS),
)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_examples_in_docstrings_are_correct(name):
    result = doctest.testmod(importlib.import_module(f"arpo.{name}"))
    assert result.attempted and not result.failed


def test_no_file_contains_notes_for_later():
    assert [name for name, text in texts().items() if NOTES.search(text)] == []


def test_no_text_names_a_machine_or_a_package_host():
    for name, text in texts().items():
        assert not (found := MACHINE_PATH.search(GUEST_PATH.sub("", text))), (name, found)
        assert not (found := PACKAGE_HOST.search(text)), (name, found)


def test_the_patterns_match():
    assert MACHINE_PATH.search(GUEST_PATH.sub("", "see /" + "home/anna/x"))
    assert not MACHINE_PATH.search("--model.path /models/UI-TARS-1.5-7B, a/home/b, https://x.org/home/y")
    assert NOTES.search("# TO" + "DO: later")


def test_every_dependency_is_pinned():
    pinned = {
        re.sub(r"[-_.]+", "-", line.split("==")[0]).lower()
        for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
        if re.fullmatch(r"[\w.-]+==[\w.]+", line)
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    assert {re.split(r"[<>=]", entry)[0].lower() for entry in wanted} <= pinned


def test_continuous_integration_runs_every_test_target():
    script = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    goals = [word for line in script if line.startswith("step ") for word in line.split() if word[0] != "-"]
    tests = [goal for goal in goals if goal.startswith("test")]
    assert tests == ["test", "test-real", "test-slow", "test-vllm", "test-browser", "test-cluster"]


def test_the_hosted_workflow_runs_the_same_targets():
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    (targets,) = re.findall(r"target: \[(.*)\]", workflow)
    assert set(targets.split(", ")) == set(re.findall(r"\btest[a-z-]*\b", script)) - {"tests", "tested"}


def test_the_version_is_written_once(capsys):
    from arpo import __version__
    from arpo.cli.entry_point import main

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "arpo.__version__"}
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"arpo {__version__}\n"
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text("utf-8")
