"""Rules for the project: docstrings, and existing commands, keys and links on all pages."""

import ast
import doctest
import importlib
import re
import subprocess
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)
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


def make_goals():
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_every_module_has_a_docstring():
    for path in SOURCES:
        tree = ast.parse(path.read_text("utf-8"))
        assert not tree.body or ast.get_docstring(tree), path


@pytest.mark.parametrize("name", ["actions", "keyboard", "parsing", "config.recipe", "cli.entry_point"])
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


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_exists(page):
    from arpo.cli.commands import COMMANDS

    text = (ROOT / page).read_text("utf-8")
    code = "\n".join("".join(pair) for pair in re.findall(r"`([^`\n]+)`|^ {4}(.+)$", text, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)\b", code)) <= make_goals()
    assert set(re.findall(r"\barpo ([a-z][a-z-]+)\b", code)) <= {command.name for command in COMMANDS}


@pytest.mark.parametrize("page", PAGES)
def test_every_config_key_on_a_page_exists(page):
    from arpo.config.recipe import keys

    named = set(re.findall(r"--([a-z]+\.[a-z_0-9]+)", (ROOT / page).read_text("utf-8")))
    assert named <= {key.name for key in keys()} | {"section.key"}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_exists(page):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text("utf-8"))
    missing = [
        link for link in links if "://" not in link and not (ROOT / page).parent.joinpath(link).exists()
    ]
    assert missing == []


def test_the_readme_names_every_command():
    from arpo.cli.commands import COMMANDS

    readme = (ROOT / "README.md").read_text("utf-8")
    assert [command.name for command in COMMANDS if f"`arpo {command.name}" not in readme] == []
    assert "make train" in readme
    assert "make test" in readme


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
    goals = [word for line in script if line.startswith("make ") for word in line.split() if word[0] != "-"]
    tests = [goal for goal in goals if goal.startswith("test")]
    assert tests == ["test", "test-real", "test-vllm", "test-browser"]
