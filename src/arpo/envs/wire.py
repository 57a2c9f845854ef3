"""What crosses the wall between an environment and who plays in it, when they are not in one process.

    GET    /health                -> {"env", "screen", "slots", "free", "version"}
    POST   /episodes              {} -> 201, Arpo-Episode: ID; a slot is taken
    POST   /episodes/ID/start     {"task": {…}} -> a picture
    POST   /episodes/ID/step      {"actions": [{"do": "Wait"}, …]} -> a picture, Arpo-Terminated
    POST   /episodes/ID/evaluate  {} -> {"score": 0.5}
    DELETE /episodes/ID           -> 204; closed, the slot is free

A picture is a PNG with its sha256 as ETag; one that this episode was sent before is 204 and the ETag alone.
Faults and refusals are {"kind", "where", "message"}: the class, and what it was made with. What is not
exactly so is a `BadRequest` that names the place: nothing is guessed, nothing is left out, and no class is
looked up by name but actions and faults.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

from arpo.actions import Action, Direction, Point
from arpo.config import EnvConfig
from arpo.errors import EnvError, EnvTimeout, UserError
from arpo.storage.codec import ACTIONS, action_to_json
from arpo.types import Task

EPISODE, TERMINATED = "Arpo-Episode", "Arpo-Terminated"
MOST_REQUEST_BYTES = 8 << 20
MOST_ANSWER_BYTES = 64 << 20
TOKEN = "ARPO_HOST_TOKEN"
SHORTEST_TOKEN = 16
DRAWN_TO_SIZE = ("desk", "osworld")  # whose screens are env.width x env.height


class BadRequest(EnvError):
    """A request that is not in the protocol."""


class WrongToken(EnvError):
    """The caller did not show the host's token."""


class NoSuchEpisode(EnvError):
    """Never was, was closed, or was given up by its host."""


class OutOfTurn(EnvError):
    """The episode cannot take this call now: it is at another one, has begun already, or not yet."""


class NoFreeSlot(EnvError):
    """Every slot of the host is taken."""


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
    """What a host says of itself. `screen` is (width, height) where the recipe decides it."""

    env: str
    screen: tuple[int, int] | None
    slots: int
    free: int
    version: str


def screen_of(config: EnvConfig) -> tuple[int, int] | None:
    return (config.width, config.height) if config.name in DRAWN_TO_SIZE else None


def read_token(environ: Mapping[str, str]) -> str | None:
    """The secret that a host and its callers share; None where there is none."""
    token = environ.get(TOKEN)
    if token is None:
        return None
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(f"{TOKEN}: must be at least {SHORTEST_TOKEN} letters and digits, without spaces")
    return token


def read_json(body: bytes, where: str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(where, f"the body is not JSON: {error}") from error


def members(value: Any, names: Sequence[str], where: str, place: str) -> list[Any]:
    """The values of an object that has these keys and no others."""
    if not isinstance(value, dict):
        raise BadRequest(where, f"{place}: must be an object, not {_shown(value)}")
    for name in value:
        if name not in names:
            raise BadRequest(where, f"{place}: no such key {_shown(name)}; there are: {', '.join(names)}")
    for name in names:
        if name not in value:
            raise BadRequest(where, f"{place}: key {name!r} is missing")
    return [value[name] for name in names]


def task_to_json(task: Task) -> dict[str, Any]:
    return asdict(task)


def task_from_json(value: Any, where: str) -> Task:
    names = [entry.name for entry in fields(Task)]
    given = dict(zip(names, members(value, names, where, "task"), strict=True))
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
    return tuple(_action(entry, where, f"actions[{index}]") for index, entry in enumerate(entries))


def fault_to_json(fault: EnvError) -> dict[str, str]:
    return {"kind": _kind(fault).__name__, "where": fault.where, "message": fault.message}


def fault_from_json(value: Any, where: str) -> EnvError:
    """A class of fault that this side does not know is an EnvError."""
    kind, place, message = members(value, ("kind", "where", "message"), where, "fault")
    for text in (kind, place, message):
        _expect(text, str, where, "fault")
    return _KINDS.get(kind, EnvError)(place, message)


def status_of(fault: EnvError) -> int:
    return STATUS[_kind(fault)]


def health_to_json(health: Health) -> dict[str, Any]:
    return asdict(health)


def health_from_json(value: Any, where: str) -> Health:
    names = [entry.name for entry in fields(Health)]
    given = dict(zip(names, members(value, names, where, "health"), strict=True))
    for name, kind in {"env": str, "slots": int, "free": int, "version": str}.items():
        _expect(given[name], kind, where, f"health.{name}")
    if given["screen"] is not None:
        width, height = (_expect(side, int, where, "health.screen") for side in _pair(given["screen"], where))
        given["screen"] = (width, height)
    return Health(**given)


def _kind(fault: EnvError) -> type[EnvError]:
    """The nearest class that the other side knows too."""
    return next(kind for kind in type(fault).__mro__ if kind in STATUS)


def _action(value: Any, where: str, place: str) -> Action:
    name = _expect(value, dict, where, place).get("do")
    kind = ACTIONS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BadRequest(where, f"{place}: no such action {_shown(name)}")
    hints = get_type_hints(kind)
    _, *arguments = members(value, ("do", *hints), where, place)
    read = {
        field: _READERS[hint](argument, where, f"{place}.{field}")
        for (field, hint), argument in zip(hints.items(), arguments, strict=True)
    }
    return kind(**read)


def _point(value: Any, where: str, place: str) -> Point:
    x, y = members(value, ("x", "y"), where, place)
    return Point(_coordinate(x, where, f"{place}.x"), _coordinate(y, where, f"{place}.y"))


def _coordinate(value: Any, where: str, place: str) -> float:
    if type(value) not in (int, float) or not abs(value) < math.inf:
        raise BadRequest(where, f"{place}: must be a finite number, not {_shown(value)}")
    return value


def _point_or_none(value: Any, where: str, place: str) -> Point | None:
    return None if value is None else _point(value, where, place)


def _direction(value: Any, where: str, place: str) -> Direction:
    if value not in list(Direction):
        raise BadRequest(where, f"{place}: must be one of {', '.join(Direction)}, not {_shown(value)}")
    return Direction(value)


def _texts(value: Any, where: str, place: str) -> tuple[str, ...]:
    return tuple(_expect(text, str, where, place) for text in _expect(value, list, where, place))


def _text(value: Any, where: str, place: str) -> str:
    return _expect(value, str, where, place)


def _flag(value: Any, where: str, place: str) -> bool:
    return _expect(value, bool, where, place)


_READERS: Mapping[Any, Any] = {
    Point: _point,
    Point | None: _point_or_none,
    Direction: _direction,
    tuple[str, ...]: _texts,
    str: _text,
    bool: _flag,
}
_CALLED = {str: "a text", bool: "true or false", int: "a whole number", list: "a list", dict: "an object"}


def _expect(value: Any, kind: type, where: str, place: str) -> Any:
    if type(value) is not kind:
        raise BadRequest(where, f"{place}: must be {_CALLED[kind]}, not {_shown(value)}")
    return value


def _pair(value: Any, where: str) -> list[Any]:
    if len(_expect(value, list, where, "health.screen")) != 2:
        raise BadRequest(where, f"health.screen: must be [width, height], not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return repr(value)[:60]
