"""Browser tasks in OSWorld's schema: set-up steps in `config`, checks in `evaluator`.

    "config": [
      {"type": "http", "parameters": {"method": "POST", "url": "http://127.0.0.1:8000/reset?session=$SESSION"}},
      {"type": "open", "parameters": {"url": "http://127.0.0.1:8000/?session=$SESSION"}}
    ],
    "evaluator": {"func": "all", "checks": [
      {"state": {"url": "http://127.0.0.1:8000/state?session=$SESSION", "changes": {"orders.0.item": "tea"}}},
      {"text": "Thank you"}
    ]}

$SESSION is a random text, different in every episode. docs/browser.md lists all steps and checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from arpo.envs.browser.functions import find_function
from arpo.envs.browser.proxy import Origin, origin_of
from arpo.errors import UserError
from arpo.types import Task

SESSION = "$SESSION"
MAX_DEPTH = 64  # of the JSON of a task: each "all" or "any" adds two levels
_HTTP = {"url": str, "method": str, "headers": dict[str, str], "json": object, "body": str, "status": int}
STEPS: Mapping[str, Mapping[str, Any]] = {  # parameters of each set-up step; the first is required
    "open": {"url": str, "allow": list[str]},
    "http": _HTTP,
    "cookies": {"cookies": list[dict]},
    "storage": {"items": dict, "url": str},
    "javascript": {"expression": str},
    "python": {"function": str},
    "miniwob": {"name": str, "seed": int},
}
ALSO_REQUIRED = {"storage": "url"}
CHECKS: Mapping[str, Any] = {
    "javascript": str,
    "url": str,
    "text": str,
    "http": {**_HTTP, "path": str, "equals": object, "contains": str},
    "state": {"url": str, "changes": dict, "ignore": list[str]},
    "download": str,
    "answer": str,
    "python": str,
    "miniwob": bool,
    "all": list,
    "any": list,
}
FUNCTIONS = ("all", "any")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserTask:
    steps: tuple[tuple[str, Mapping[str, Any]], ...]
    check: Mapping[str, Any]  # one check; others may be inside
    allowed: frozenset[Origin] = field(default=frozenset())


def read_task(task: Task, session: str, *, functions: bool = True) -> BrowserTask:
    """The task, with $SESSION replaced. Raises UserError, which names the task and the place in it.

    `functions`: whether Python functions that it names must be there. Those of a host are on its machine.
    """
    place = f"task {task.id}"
    _require_shallow([task.config, task.evaluator], place)
    steps: list[tuple[str, Mapping[str, Any]]] = []
    for number, step in enumerate(task.config):
        where = f"{place}: config[{number}]"
        kind: Any = step.get("type")
        if not isinstance(kind, str) or kind not in STEPS:
            raise UserError(f"{where}: type must be one of {', '.join(STEPS)}, not {kind!r}")
        parameters = step.get("parameters", {})
        _check_parameters(parameters, STEPS[kind], f"{where} ({kind})", ALSO_REQUIRED.get(kind, ""))
        if kind == "python" and functions:
            find_function(parameters["function"], f"{where} (python): function")
        steps.append((kind, _filled(parameters, session)))
    if not any(kind in ("open", "miniwob") for kind, _ in steps):
        raise UserError(f'{place}: config has no step of type "open": which page is shown first?')
    func, checks = task.evaluator.get("func"), task.evaluator.get("checks")
    if task.has_evaluator and func not in FUNCTIONS:
        raise UserError(f'{place}: evaluator: func must be "all", "any" or "none", not {func!r}')
    check = {func: checks} if task.has_evaluator else {"all": []}
    if task.has_evaluator:
        _check_check(check, f"{place}: evaluator")
    filled = _filled(check, session)
    for kind, value in single_checks(filled):
        if kind == "python" and functions:
            find_function(value, f"{place}: evaluator: python")
    return BrowserTask(steps=tuple(steps), check=filled, allowed=_allowed(steps, place))


def single_checks(check: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Kind and value of each check that is not "all" or "any"."""
    [(kind, value)] = check.items()
    if kind not in FUNCTIONS:
        yield kind, value
        return
    for inner in value:
        yield from single_checks(inner)


def _require_shallow(value: Any, place: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [inner for one in level for inner in _values_in(one)]
    if level:
        raise UserError(f"{place}: is nested too deeply, must have at most {MAX_DEPTH} levels")


def _values_in(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _check_parameters(value: Any, types: Mapping[str, Any], place: str, also_required: str = "") -> None:
    if not isinstance(value, Mapping):
        raise UserError(f"{place}: must be an object with {', '.join(types)}, not {value!r}")
    for name, content in value.items():
        if name not in types:
            raise UserError(f"{place}: unknown key {name!r}: use {', '.join(types)}")
        if not _is_of(content, types[name]):
            raise UserError(f"{place}.{name}: must be {_NAMES[types[name]]}, not {content!r}")
    for name in filter(None, (next(iter(types)), also_required)):
        if name not in value:
            raise UserError(f"{place}: {name} is missing")
    if "url" in value:
        origin_of(value["url"], place)


def _is_of(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of a type such as list[str]. true is no number."""
    outer = get_origin(kind) or kind
    if not isinstance(value, outer) or (outer is int and isinstance(value, bool)):
        return False
    inner = value.values() if outer is dict else value
    return all(_is_of(one, get_args(kind)[-1]) for one in inner) if get_args(kind) else True


_NAMES: Mapping[Any, str] = {
    str: "a text",
    int: "a number",
    list: "a list",
    list[str]: "a list of texts",
    list[dict]: "a list of objects",
    dict: "an object",
    dict[str, str]: "an object of texts",
    bool: "true",
    object: "a value",
}


def _check_check(check: Any, place: str) -> None:
    if not isinstance(check, Mapping) or len(check) != 1:
        raise UserError(f"{place}: a check is an object with one key, of {', '.join(CHECKS)}; not {check!r}")
    kind: str
    value: Any
    [(kind, value)] = check.items()
    if (form := CHECKS.get(kind)) is None:
        raise UserError(f"{place}: unknown check {kind!r}: use {', '.join(CHECKS)}")
    if isinstance(form, Mapping):
        return _check_parameters(value, form, f"{place}.{kind}")
    content: Any = value
    if not isinstance(value, form):
        raise UserError(f"{place}.{kind}: must be {_NAMES[form]}, not {value!r}")
    if form is list:
        if not content:
            raise UserError(f"{place}.{kind}: has no check")
        for number, inner in enumerate(content):
            _check_check(inner, f"{place}.{kind}[{number}]")
    if kind in ("url", "answer"):
        try:
            re.compile(content)
        except re.error as error:
            raise UserError(f"{place}.{kind}: {value!r} is no regular expression: {error}") from None


def _filled(value: Any, session: str) -> Any:
    """The value with $SESSION replaced in every text."""
    if isinstance(value, str):
        return value.replace(SESSION, session)
    if isinstance(value, Mapping):
        return {key: _filled(content, session) for key, content in value.items()}
    if isinstance(value, Sequence):
        return [_filled(content, session) for content in value]
    return value


def _allowed(steps: Sequence[tuple[str, Mapping[str, Any]]], place: str) -> frozenset[Origin]:
    """The origins of all pages that the set-up opens, and those that `allow` adds."""
    urls = [url for kind, step in steps if kind == "open" for url in (step["url"], *step.get("allow", ()))]
    return frozenset(origin_of(url, place) for url in urls)
