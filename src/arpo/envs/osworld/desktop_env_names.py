"""Names of desktop-env's setup steps, getters and metrics, and the check of the names in a task.

desktop-env looks up names when it needs them, some only after the episode. Here all names of a task are
looked up before its desktop boots: before a run, to skip the task, and again in the worker. `needs` checks
the structure of a task and its paths. The names are read from desktop-env's source code without importing it.

    python -m arpo.envs.osworld.desktop_env_names

prints the names of this interpreter's desktop-env as JSON. Importing desktop-env takes seconds; parsing it
takes milliseconds. The file desktop_env_names.json has the names of the version that `arpo osworld
install` installs.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from arpo.config import EnvConfig, OSWorldConfig
from arpo.config.recipe import find_program
from arpo.envs.answers import ANSWER
from arpo.envs.osworld.needs import needs
from arpo.errors import EnvError, UserError
from arpo.processes.child import python_command
from arpo.types import Json, Task

ASK_SECONDS = 60.0
EASYOCR_METRIC = "compare_image_text"
UNSAFE_METRICS = {"check_python_file_by_test_suite": "it runs files of the model outside the sandbox"}
SHIPPED = "desktop_env_names.json"
_BEGIN = '{\n "steps": '  # of the output of `to_json`


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """Names in desktop-env. `unusable` maps a metric to the reason why it cannot be used."""

    steps: frozenset[str]
    getters: frozenset[str]
    metrics: frozenset[str]
    unusable: Mapping[str, str]


def names_for(env: EnvConfig, osworld: OSWorldConfig) -> KnownNames:
    """The names known where the tasks run.

    Environment hosts are assumed to have the version that `arpo osworld install` installs. So is this machine
    if `osworld.python` has no desktop-env: the run itself reports that.
    """
    python = None if env.hosts else find_program(osworld.python)
    return (_ask(python) if python else None) or shipped_names()


@functools.cache
def installed_names() -> KnownNames:
    """The names in the desktop-env of this interpreter. Raises ModuleNotFoundError if there is none."""
    found = importlib.util.find_spec("desktop_env")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("desktop-env is not installed", name="desktop_env")
    package = Path(found.submodule_search_locations[0])
    methods = _class_members(package / "controllers" / "setup.py", "SetupController")
    getters = _names(package / "evaluators" / "getters")
    unusable = dict(UNSAFE_METRICS)
    if not _is_installed("easyocr"):
        unusable[EASYOCR_METRIC] = "it needs easyocr, which is not installed: pip install easyocr"
    return KnownNames(
        steps=frozenset(name[1:-6] for name in methods if name.startswith("_") and name.endswith("_setup")),
        getters=frozenset(name.removeprefix("get_") for name in getters if name.startswith("get_")),
        metrics=frozenset(name for name in _names(package / "evaluators" / "metrics") if name[0] != "_"),
        unusable=unusable,
    )


@functools.cache
def shipped_names() -> KnownNames:
    """The names in the version of desktop-env that `arpo osworld install` installs, as it installs it."""
    return _known_names(json.loads((resources("arpo") / "envs" / "osworld" / SHIPPED).read_text("utf-8")))


def to_json(names: KnownNames) -> str:
    """One name per line, sorted: the content of desktop_env_names.json."""
    content: dict[str, Any] = {
        "steps": sorted(names.steps),
        "getters": sorted(names.getters),
        "metrics": sorted(names.metrics),
        "unusable": dict(sorted(names.unusable.items())),
    }
    return json.dumps(content, indent=1) + "\n"


def _known_names(content: Json) -> KnownNames:
    return KnownNames(
        steps=frozenset(content["steps"]),
        getters=frozenset(content["getters"]),
        metrics=frozenset(content["metrics"]),
        unusable=content["unusable"],
    )


@functools.cache
def _ask(python: str) -> KnownNames | None:
    """The names in the desktop-env of another interpreter; None if it has none, or no ARPO."""
    try:
        answer = subprocess.run(
            python_command(__name__, python=python), capture_output=True, check=True, timeout=ASK_SECONDS
        ).stdout.decode("utf-8", "replace")
        # A site configuration of the interpreter may print lines before and after the names.
        content, _ = json.JSONDecoder().raw_decode(answer, answer.index(_BEGIN))
        return _known_names(content)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError):
        return None


def _names(module: Path) -> set[str]:
    """The functions that a module defines or imports. `module` is its path without ".py"."""
    file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    found = set()
    for statement in _parse(file).body:
        match statement:
            case ast.FunctionDef(name=name):
                found.add(name)
            case ast.ImportFrom(module=str(source), names=aliases, level=1):
                found |= set(_imported(file.parent / source.replace(".", "/"), aliases))
    return found


def _imported(module: Path, aliases: list[ast.alias]) -> Iterator[str]:
    for alias in aliases:
        if alias.name == "*":
            yield from _names(module)
        else:
            yield alias.asname or alias.name


def _class_members(file: Path, name: str) -> list[str]:
    classes = [node for node in _parse(file).body if isinstance(node, ast.ClassDef) and node.name == name]
    return [member.name for node in classes for member in node.body if isinstance(member, ast.FunctionDef)]


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"), str(file))


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # the placeholder of a worker
        return False


def check_task(task: Task, known: KnownNames) -> None:
    """Raises EnvError("start", …) with the task, the key and, for a misspelt name, the nearest known name."""
    try:
        reason = why_refused(task, known)
    except UserError as error:
        raise EnvError("start", str(error)) from error
    if reason is not None:
        raise EnvError("start", f"task {task.id}: {reason}")


def why_refused(task: Task, known: KnownNames) -> str | None:
    """The first unknown or unusable name of the task; None if desktop-env can set up and score the task.

    Raises UserError if the task is malformed.
    """
    needs(task)
    try:
        _check_names(task, known)
        _check_lists(task)
    except UserError as error:
        return str(error)
    return None


def _check_names(task: Task, known: KnownNames) -> None:
    evaluator = task.evaluator
    postconfig = evaluator.get("postconfig", [])
    for key, steps in (("config", task.config), ("evaluator.postconfig", postconfig)):
        for index, step in enumerate(steps):
            _check_known(step["type"], known.steps, f"{key}[{index}].type", "setup step {}")
    for key, name in _items(evaluator, "func"):
        if evaluator["func"] == ANSWER or not task.has_evaluator:
            continue  # ARPO compares the answer itself, and scores nothing without an evaluator
        _check_known(name, known.metrics, key, "metric {}")
        if name in known.unusable:
            raise UserError(f"{key} = {name!r}: {known.unusable[name]}")
    for source_key in ("result", "expected"):
        for key, source in _items(evaluator, source_key):
            if source:  # one of several metrics may have no expected value
                _check_known(source["type"], known.getters, f"{key}.type", "getter get_{}")


def _check_known(name: Any, names: Collection[str], location: str, kind: str) -> None:
    if name in names:
        return
    nearest = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    raise UserError(f"{location} = {name!r}: desktop-env has no {kind.format(name)}{hint}")


def _check_lists(task: Task) -> None:
    """With several metrics, each needs its own result, and `conj` must be "and" or "or"."""
    evaluator = task.evaluator
    func = evaluator["func"]
    if isinstance(func, str):
        return
    for key in ("result", "expected", "options"):
        value = evaluator.get(key)
        if value and (isinstance(value, Mapping) or len(value) != len(func)):
            raise UserError(f"evaluator.{key}: must be a list, one for each of {len(func)} metrics")
    if evaluator.get("conj", "and") not in ("and", "or"):
        raise UserError(f'evaluator.conj: is {evaluator["conj"]!r}, must be "and" or "or"')


def _items(evaluator: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    """Pairs of path and value, for a single item or a list: ("evaluator.func[0]", "exact_match")."""
    value = evaluator.get(key) or []
    if isinstance(value, list | tuple):
        yield from ((f"evaluator.{key}[{index}]", item) for index, item in enumerate(value))
    else:
        yield f"evaluator.{key}", value


if __name__ == "__main__":
    sys.stdout.write(to_json(installed_names()))
