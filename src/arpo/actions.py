"""Typed actions. `render` writes them as text of UI-TARS; `scale` converts their coordinates.

`action_to_json` and `action_from_json` are their form in stored episodes and in requests.
`arpo.dialects` read the text of a model. That of UI-TARS is the opposite of `render`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, get_args, get_type_hints


class Direction(StrEnum):
    UP = "up"
    DOWN = "down"
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True)
class Point:
    """A position in pixels: of the model's image after parsing, of the screen after `scale`."""

    x: float
    y: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleClick:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class RightClick:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Hover:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPress:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Drag:
    start: Point
    end: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Scroll:
    point: Point | None
    direction: Direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Hotkey:
    """Keys pressed together, by canonical name: ("ctrl", "c"), ("pagedown",)."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDown:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUp:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """Text to type. `submit` presses Enter afterwards (the model's text ended with a newline)."""

    text: str
    submit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenApp:
    name: str


@dataclass(frozen=True, slots=True)
class PressHome: ...


@dataclass(frozen=True, slots=True)
class PressBack: ...


@dataclass(frozen=True, slots=True)
class Wait: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    content: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    """error_env(): the model declares the task infeasible."""


@dataclass(frozen=True, slots=True)
class CallUser: ...


Action = (
    Click | DoubleClick | RightClick | Hover | LongPress | Drag | Scroll | Hotkey | KeyDown | KeyUp | Type
    | OpenApp | PressHome | PressBack | Wait | Finished | Fail | CallUser
)  # fmt: skip

TERMINAL = (Finished, Fail, CallUser)

_KINDS: Mapping[str, type[Action]] = {kind.__name__: kind for kind in get_args(Action)}
_HINTS: Mapping[str, Mapping[str, Any]] = {name: get_type_hints(kind) for name, kind in _KINDS.items()}
_ESCAPES = str.maketrans({"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def up_to_terminal(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions up to and including the first terminal one. Later actions are dropped."""
    for index, action in enumerate(actions):
        if isinstance(action, TERMINAL):
            return tuple(actions[: index + 1])
    return tuple(actions)


def render(actions: Sequence[Action], thought: str = "") -> str:
    r"""Write an answer in the action language.

    >>> render([Click(point=Point(105, 63))], "open it")
    "Thought: open it\nAction: click(start_box='(105,63)')"
    """
    calls = "\n\n".join(_call(action) for action in actions)
    return f"Thought: {thought}\nAction: {calls}" if thought else f"Action: {calls}"


def scale(action: Action, from_size: tuple[int, int], to_size: tuple[int, int]) -> Action:
    """Convert the action's coordinates to an image of another size. Points outside it move to its edge.

    If a model answers in 0..1000, from_size is (1000, 1000).

    >>> scale(Click(point=Point(500, 250)), (1000, 1000), (1920, 1080))
    Click(point=Point(x=960.0, y=270.0))
    """

    def scaled(point: Point) -> Point:
        x, y = (
            float(min(round(min(max(value, 0), source) * target / source), target - 1))
            for value, source, target in zip((point.x, point.y), from_size, to_size, strict=True)
        )
        return Point(x, y)

    match action:
        case Click(point=point) | DoubleClick(point=point) | RightClick(point=point):
            return replace(action, point=scaled(point))
        case Hover(point=point) | LongPress(point=point) | Scroll(point=Point() as point):
            return replace(action, point=scaled(point))
        case Drag(start=start, end=end):
            return Drag(start=scaled(start), end=scaled(end))
        case _:
            return action


def action_to_json(action: Action) -> dict[str, Any]:
    """For example {"do": "Click", "point": {"x": 3, "y": 4}}."""
    return {"do": type(action).__name__, **asdict(action)}


def action_from_json(value: Any, path: str = "action") -> Action:
    """The opposite of `action_to_json`. Every key and type is checked: the caller may be hostile.

    Raises ValueError with the place: "action.keys: must be a list of texts, not None".
    """
    name = value.get("do") if isinstance(value, dict) else value
    if not isinstance(name, str) or name not in _KINDS or not isinstance(value, dict):
        raise ValueError(f"{path}: unknown action {_shown(name)}")
    hints = _HINTS[name]
    if value.keys() != {"do", *hints}:
        raise ValueError(f"{path}: its keys must be {', '.join(('do', *hints))}, not {_shown([*value])}")
    return _KINDS[name](**{key: _argument(value[key], hint, f"{path}.{key}") for key, hint in hints.items()})


def _argument(value: Any, hint: Any, path: str) -> Any:
    if hint is bool or hint is str:
        wanted = "a text" if hint is str else "true or false"
        if type(value) is hint:
            return value
    elif hint is Direction:
        wanted = f"one of {', '.join(Direction)}"
        if isinstance(value, str) and value in list(Direction):
            return Direction(value)
    elif hint == tuple[str, ...]:
        wanted = "a list of texts"
        if isinstance(value, list) and all(isinstance(text, str) for text in value):
            return tuple(value)
    else:
        assert hint in (Point, Point | None), hint
        wanted = "{x, y} in finite numbers"
        if value is None and hint != Point:
            return None
        if isinstance(value, dict) and value.keys() == {"x", "y"} and all(map(_is_finite, value.values())):
            return Point(**value)
    raise ValueError(f"{path}: must be {wanted}, not {_shown(value)}")


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < math.inf


def _shown(value: Any) -> str:
    return repr(value)[:60]


def _call(action: Action) -> str:
    match action:
        case Click(point=point):
            return f"click(start_box={_box(point)})"
        case DoubleClick(point=point):
            return f"left_double(start_box={_box(point)})"
        case RightClick(point=point):
            return f"right_single(start_box={_box(point)})"
        case Hover(point=point):
            return f"hover(start_box={_box(point)})"
        case LongPress(point=point):
            return f"long_press(start_box={_box(point)})"
        case Drag(start=start, end=end):
            return f"drag(start_box={_box(start)}, end_box={_box(end)})"
        case Scroll(point=target, direction=direction):
            return f"scroll({f'start_box={_box(target)}, ' if target else ''}direction='{direction}')"
        case Hotkey(keys=keys):
            return f"hotkey(key={_keys(*keys)})"
        case KeyDown(key=key):
            return f"keydown(key={_keys(key)})"
        case KeyUp(key=key):
            return f"keyup(key={_keys(key)})"
        case Type(text=text, submit=submit):
            return f"type(content={_quoted(text + submit * chr(10))})"
        case OpenApp(name=name):
            return f"open_app(app_name={_quoted(name)})"
        case PressHome():
            return "press_home()"
        case PressBack():
            return "press_back()"
        case Wait():
            return "wait()"
        case Finished(content=content):
            return f"finished(content={_quoted(content)})" if content else "finished()"
        case Fail():
            return "error_env()"
        case CallUser():
            return "call_user()"


def _quoted(text: str) -> str:
    return f"'{text.translate(_ESCAPES)}'"


def _box(point: Point) -> str:
    return f"'({_number(point.x)},{_number(point.y)})'"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _keys(*keys: str) -> str:
    """Quote keys, separated by spaces. "+" also separates keys, so the key "+" is written "plus"."""
    return _quoted(" ".join("plus" if key == "+" else key for key in keys))
