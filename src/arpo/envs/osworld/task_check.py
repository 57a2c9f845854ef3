"""What a task asks of desktop-env, checked before anything boots.

desktop-env finds setup steps, getters and metrics by the names in the task file, some of them only when the
episode is over. Here every name is looked up first. Whether a task is built as it should be and stays within
its own folder is for `needs` to say; what its steps do is not judged.
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
class Vocabulary:
    """The names that desktop-env knows; `unusable` says of a metric why it cannot be used here."""

    steps: frozenset[str]
    getters: frozenset[str]
    metrics: frozenset[str]
    unusable: Mapping[str, str]


def vet(task: Task, known: Vocabulary) -> None:
    """EnvError("start", …) that names the task, the key and, for a misspelt name, the nearest right one."""
    try:
        needs(task)
        _check_names(task, known)
        _check_lists(task)
    except UserError as wrong:
        raise EnvError("start", str(wrong)) from wrong


def _check_names(task: Task, known: Vocabulary) -> None:
    evaluator = task.evaluator
    postconfig = evaluator.get("postconfig", [])
    for key, steps in (("config", task.config), ("evaluator.postconfig", postconfig)):
        for number, step in enumerate(steps):
            place = f"task {task.id}: {key}[{number}].type"
            _check_known(step["type"], known.steps, place, "setup step {}")
    for place, name in _each(evaluator, "func"):
        place = f"task {task.id}: {place}"
        _check_known(name, known.metrics, place, "metric {}")
        if name in known.unusable:
            raise UserError(f"{place} = {name!r}: {known.unusable[name]}")
    for key in ("result", "expected"):
        for place, source in _each(evaluator, key):
            if source:  # of several metrics, one may compare with nothing
                place = f"task {task.id}: {place}.type"
                _check_known(source["type"], known.getters, place, "getter get_{}")


def _check_known(name: Any, names: Collection[str], place: str, what: str) -> None:
    if name in names:
        return
    nearest = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
    raise UserError(f"{place} = {name!r}: desktop-env has no {what.format(name)}{hint}")


def _check_lists(task: Task) -> None:
    """Of several metrics, each has its own result, and all are joined by a word that there is."""
    evaluator = task.evaluator
    func = evaluator["func"]
    if isinstance(func, str):
        return
    for key in ("result", "expected", "options"):
        value = evaluator.get(key)
        if value and (isinstance(value, Mapping) or len(value) != len(func)):
            place = f"task {task.id}: evaluator.{key}"
            raise UserError(f"{place}: must be a list, one for each of {len(func)} metrics")
    if evaluator.get("conj", "and") not in ("and", "or"):
        raise UserError(f'task {task.id}: evaluator.conj: is {evaluator["conj"]!r}, must be "and" or "or"')


def _each(evaluator: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    value = evaluator.get(key) or []
    if isinstance(value, list | tuple):
        yield from ((f"evaluator.{key}[{number}]", item) for number, item in enumerate(value))
    else:
        yield f"evaluator.{key}", value
