"""README.md, CONTRIBUTING.md and docs/*.md: commands, settings, make targets, files and links are correct."""

from __future__ import annotations

import re
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from arpo.cli import eval_osworld_command
from arpo.cli.commands import COMMANDS
from arpo.cli.entry_point import main, parse_command
from arpo.config import FRESH
from arpo.config.recipe import keys, load_config, shipped_recipes
from arpo.errors import UserError
from documentation import PAGES, ROOT, named_commands, read_page, shown_commands

NAMES = {key.name for key in keys()}
SECTIONS = {name.partition(".")[0] for name in NAMES}
FLAGS_OF_HOSTS = {"env": "env.name", "slots": "env.parallel"}
ALL_COMMANDS = sorted({tuple(words) for page in PAGES for words in shown_commands(page)})
# Commands that need no model, desktop, browser, network or server: they are run. Others are only checked.
QUICK = [
    words
    for words in ALL_COMMANDS
    if words[0] == "recipes"
    or (words[0] == "check-env" and "browser" not in words and not re.match("openenv:|browsergym", words[1]))
    or (words[0] == "doctor" and "--recipe" in words)
    or any(word.startswith("--help") for word in words)
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the pages tell a reader to make."""
    folder = tmp_path_factory.mktemp("reader")
    shutil.copytree(
        ROOT / "examples", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__", "runs")
    )
    (folder / "mine.toml").write_text('extends = "desk"\n')
    (folder / "prompt.txt").write_text("{instruction}")
    for name in ("runs/desk", "runs/first", "runs/s0", "runs/s1", "runs/new"):
        (folder / name).mkdir(parents=True)
        (folder / name / "recipe.toml").write_text('extends = "desk"\n')
    return folder


@pytest.fixture
def reader(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


def check_settings(name: str, options: Namespace, overrides: list[str]) -> None:
    """Load the config that the command would load. A UserError says what is wrong on the page."""
    if name == "eval osworld":
        overrides = [*eval_osworld_command.flag_overrides(options), *overrides]
    if name == "env-host":
        flags = {key: getattr(options, flag) for flag, key in FLAGS_OF_HOSTS.items()}
        overrides += [f"--{key}={value}" for key, value in flags.items() if value is not None]
    if name == "serve":
        overrides += ["--engine.name=vllm", "--engine.replicas=1"]
    methods = getattr(options, "methods", [getattr(options, "recipe", None)])
    for recipe in methods:
        folder = str(recipe).rpartition("=")[2].partition(",")[0]  # of NAME=FOLDER,FOLDER
        is_run = recipe not in shipped_recipes() and Path(folder).is_dir()
        tasks = load_config(None if is_run else recipe, overrides).tasks
        if tasks.distinct and tasks.train != FRESH:  # found only when the tasks are loaded
            raise UserError(f"tasks.distinct is set, and the tasks are {tasks.train}")


@pytest.mark.parametrize("words", ALL_COMMANDS, ids=" ".join)
def test_every_command_is_accepted(words: tuple[str, ...], reader: Path) -> None:
    try:
        command, options, overrides = parse_command(words)
    except SystemExit as ended:  # --help, --version
        assert ended.code == 0
    else:
        check_settings(command.name, options, overrides)


@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_quick_commands_run(
    words: tuple[str, ...], reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(reader))
    try:
        assert main(list(words)) == 0
    except SystemExit as ended:
        assert ended.code == 0
    assert capsys.readouterr().out


def test_the_checks_find_mistakes(reader: Path) -> None:
    for line in (
        "train no_such_recipe",
        "train desk --optim.lr fast",
        "train desk --no.key 1",
        "train desk --jobs 2",
        "train --tasks.train samples.json",
    ):
        with pytest.raises(UserError):
            command, options, overrides = parse_command(line.split())
            check_settings(command.name, options, overrides)


@pytest.mark.parametrize("page", PAGES)
def test_every_name_on_a_page_exists(page: str) -> None:
    text = read_page(page)
    goals = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    code = "\n".join("".join(pair) for pair in re.findall(r"`([^`\n]+)`|^ {4}(.+)$", text, re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)\b", code)) <= goals
    names = {word for command in COMMANDS for word in command.name.split()} | {"--help", "--version"}
    assert named_commands(page) <= names
    scripts = re.findall(r"\bpython ((?:benchmarks|tools|docs)/[\w/]+\.py)", code)
    assert [script for script in scripts if not (ROOT / script).is_file()] == []
    settings = set(re.findall(r"--([a-z]+\.[a-z_0-9]+)", text)) - {"section.key"}
    settings |= {
        name
        for name in re.findall(r"`([a-z]+\.[a-z_0-9]+)(?: = [^`]+)?`", text)
        if name.partition(".")[0] in SECTIONS
        and not name.endswith((".py", ".md", ".toml", ".json", ".jsonl"))
    }
    assert settings <= NAMES, page


@pytest.mark.parametrize("page", [*PAGES, "benchmarks/results/README.md", "benchmarks/results/earlier.md"])
def test_every_link_leads_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", read_page(page)):
        if "://" not in link:
            path, _, anchor = link.partition("#")
            target = folder / path if path else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target.read_text("utf-8")), link


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as the usual hosting services make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_names_every_command() -> None:
    readme = read_page("README.md")
    assert [command.name for command in COMMANDS if f"`arpo {command.name}" not in readme] == []
    assert "make train" in readme
    assert "make test" in readme


def test_the_table_of_additions_names_existing_files() -> None:
    _, _, rest = read_page("CONTRIBUTING.md").partition("## To add X, edit Y")
    table = re.findall(r"^\|.*$", rest.partition("\n## ")[0], re.MULTILINE)
    paths = re.findall(r"`([\w/]+(?:\.py|/))`", "\n".join(table))
    assert {"config/settings.py", "actions.py", "viewer/pages/", "processes/child.py"} <= set(paths)
    assert [path for path in paths if not (ROOT / "src" / "arpo" / path).exists()] == []
