"""Checks the names in a task before its desktop boots.

desktop-env looks up setup steps, getters and metrics by name, some of them only after the episode. Here all
names are looked up first: before a run, to skip the task, and again in the worker. `needs` checks the
structure of a task and its paths. The actions of the steps are not checked.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from arpo.envs.osworld.needs import needs
from arpo.errors import EnvError, UserError
from arpo.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNames:
    """Names in desktop-env. `unusable` maps a metric to the reason why it cannot be used."""

    steps: frozenset[str]
    getters: frozenset[str]
    metrics: frozenset[str]
    unusable: Mapping[str, str]


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
