"""The HTTP protocol between `arpo env-host` and its callers.

    GET    /health                -> {"env", "screen", "slots", "free", "version"}
    POST   /episodes              {} -> 201, header Arpo-Episode: ID; takes a slot
    POST   /episodes/ID/start     {"task": {…}} -> screenshot
    POST   /episodes/ID/step      {"actions": [{"do": "Wait"}, …]} -> screenshot, header Arpo-Terminated
    POST   /episodes/ID/evaluate  {} -> {"score": 0.5}
    DELETE /episodes/ID           -> 204; closes the environment and frees the slot

A screenshot is a PNG with its sha256 as ETag; if the episode was sent the same one before, the response is
204 with the ETag alone. No call is repeated: a caller that disconnects during start, step or evaluate ends
the episode. An error is {"kind": class name, "where": call, "message": text}, with "place" (file and line) if
it is known. Every message is checked strictly: an unknown or missing key or a wrong type is a `BadRequest`
with its path, such as "actions[1].keys". Only actions and errors are looked up by class name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from arpo.actions import Action, action_from_json, action_to_json
from arpo.config import EnvConfig
from arpo.errors import EnvError, EnvTimeout
from arpo.processes.environment import read_secret
from arpo.types import Task

EPISODE, TERMINATED = "Arpo-Episode", "Arpo-Terminated"
INSTRUCTION = "Arpo-Instruction"  # of the first screenshot, as JSON; absent: that of the task
MAX_INSTRUCTION, MAX_HEADER_BYTES = 4000, 2**16  # characters; a character has up to 12 bytes in JSON
MAX_REQUEST_BYTES = 8 << 20
MAX_RESPONSE_BYTES = 64 << 20
TOKEN_VARIABLE = "ARPO_HOST_TOKEN"
OPENENV_HEALTH = {"status": "healthy"}  # of `arpo env-host --openenv` and of other OpenEnv servers
SIZED_BY_RECIPE = ("desk", "osworld", "browser")  # their screens are env.width x env.height


class BadRequest(EnvError):
    """The request does not follow the protocol."""


class WrongToken(EnvError):
    """The request does not carry the host's token."""


class NoSuchEpisode(EnvError):
    """The episode never existed, was closed, or expired."""


class OutOfTurn(EnvError):
    """The call is not allowed now: another call is running, or `start` comes twice or not first."""


class NoFreeSlot(EnvError):
    """All slots of the host are in use."""


STATUS: Mapping[type[EnvError], int] = {
    BadRequest: 400,
    WrongToken: 401,
    NoSuchEpisode: 404,
    OutOfTurn: 409,
    EnvError: 500,
    NoFreeSlot: 503,
    EnvTimeout: 504,
}
_KINDS = {kind.__name__: kind for kind in STATUS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The state of a host. `screen` is (width, height) if the recipe sets it, otherwise None.

    >>> Health(env="desk", screen=(224, 168), slots=32, free=30, version="0.1.0")
    """

    env: str
    screen: tuple[int, int] | None
    slots: int
    free: int
    version: str


def configured_screen(config: EnvConfig) -> tuple[int, int] | None:
    return (config.width, config.height) if config.name in SIZED_BY_RECIPE else None


def read_token(environ: Mapping[str, str]) -> str | None:
    """Return the shared secret of the host and its callers, or None if the variable is not set."""
    return read_secret(TOKEN_VARIABLE, environ)


def read_json(body: bytes, where: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(where, f"the body is not JSON: {error}") from error


def object_values(value: Any, names: Sequence[str], where: str, path: str) -> list[Any]:
    """Return the values of `names`, in order. Raises BadRequest unless the object has exactly these keys."""
    if not isinstance(value, dict):
        raise BadRequest(where, f"{path}: must be an object, not {_short_repr(value)}")
    for name in value:
        if name not in names:
            raise BadRequest(
                where, f"{path}: unknown key {_short_repr(name)}; the keys are: {', '.join(names)}"
            )
    for name in names:
        if name not in value:
            raise BadRequest(where, f"{path}: key {name!r} is missing")
    return [value[name] for name in names]


def task_to_json(task: Task) -> dict[str, Any]:
    """All fields except the solution: an environment does not need it."""
    return {name: value for name, value in asdict(task).items() if name != "solution"}


def task_from_json(value: Any, where: str) -> Task:
    names = [entry.name for entry in fields(Task) if entry.name != "solution"]
    given = dict(zip(names, object_values(value, names, where, "task"), strict=True))
    for name in ("id", "instruction", "snapshot", "domain"):
        _expect(given[name], str, where, f"task.{name}")
    _expect(given["evaluator"], dict, where, "task.evaluator")
    for index, step in enumerate(_expect(given["config"], list, where, "task.config")):
        _expect(step, dict, where, f"task.config[{index}]")
    given["config"] = tuple(given["config"])
    given["related_apps"] = _texts(given["related_apps"], where, "task.related_apps")
    return Task(**given)


def actions_to_json(actions: Sequence[Action]) -> list[dict[str, Any]]:
    return [action_to_json(action) for action in actions]


def actions_from_json(value: Any, where: str) -> tuple[Action, ...]:
    entries = _expect(value, list, where, "actions")
    try:
        return tuple(action_from_json(entry, f"actions[{index}]") for index, entry in enumerate(entries))
    except ValueError as error:
        raise BadRequest(where, str(error)) from error


def fault_to_json(fault: EnvError) -> dict[str, str]:
    place = {"place": fault.place} if fault.place else {}
    return {"kind": _kind(fault).__name__, "where": fault.where, "message": fault.message, **place}


def fault_from_json(value: Any, where: str) -> EnvError:
    """An unknown kind becomes an EnvError."""
    given = {"place": ""} | value if isinstance(value, dict) else value
    kind, call, message, place = object_values(given, ("kind", "where", "message", "place"), where, "fault")
    for text in (kind, call, message, place):
        _expect(text, str, where, "fault")
    return _KINDS.get(kind, EnvError)(call, message, place)


def status_of(fault: EnvError) -> int:
    return STATUS[_kind(fault)]


def health_to_json(health: Health) -> dict[str, Any]:
    return asdict(health)


def health_from_json(value: Any, where: str) -> Health:
    if value == OPENENV_HEALTH:
        raise BadRequest(where, "speaks OpenEnv: start its `arpo env-host` without --openenv")
    names = [entry.name for entry in fields(Health)]
    given = dict(zip(names, object_values(value, names, where, "health"), strict=True))
    for name, kind in {"env": str, "slots": int, "free": int, "version": str}.items():
        _expect(given[name], kind, where, f"health.{name}")
    if given["screen"] is not None:
        width, height = (_expect(side, int, where, "health.screen") for side in _pair(given["screen"], where))
        given["screen"] = (width, height)
    return Health(**given)


def _kind(fault: EnvError) -> type[EnvError]:
    """The nearest base class in the protocol."""
    return next(kind for kind in type(fault).__mro__ if kind in STATUS)


def _texts(value: Any, where: str, path: str) -> tuple[str, ...]:
    return tuple(_expect(text, str, where, path) for text in _expect(value, list, where, path))


_TYPE_NAMES = {str: "a string", int: "an integer", list: "a list", dict: "an object"}


def _expect(value: Any, kind: type, where: str, path: str) -> Any:
    if type(value) is not kind:
        raise BadRequest(where, f"{path}: must be {_TYPE_NAMES[kind]}, not {_short_repr(value)}")
    return value


def _pair(value: Any, where: str) -> list[Any]:
    if len(_expect(value, list, where, "health.screen")) != 2:
        raise BadRequest(where, f"health.screen: must be [width, height], not {_short_repr(value)}")
    return value


def _short_repr(value: Any) -> str:
    return repr(value)[:60]
