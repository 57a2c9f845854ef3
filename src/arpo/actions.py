"""Typed actions. `render` writes them as text of UI-TARS; `scale` converts their coordinates.

`action_to_json` and `action_from_json` are their form in stored episodes and in requests.
`arpo.dialects` read the text of a model. That of UI-TARS is the opposite of `render`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, get_args, get_type_hints

MAX_WAITS_SECONDS = 30.0  # of all waits of a step: below its timeout


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


# The position of the mouse pointer, for answers such as left_click without a coordinate. `resolve_pointer`
# replaces it: no environment sees it.
POINTER = Point(math.nan, math.nan)


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
class MiddleClick:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class TripleClick:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Hover:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class LongPress:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class MouseDown:
    """Press the left button. It stays down until `MouseUp`."""

    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class MouseUp:
    point: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Drag:
    start: Point
    end: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Scroll:
    """`amount`: wheel notches; None: the default of the environment."""

    point: Point | None
    direction: Direction
    amount: int | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """None: one second on a real desktop."""

    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveAnswer:
    """The answer to the task's question. It does not end the episode. The evaluator "answer" checks it."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    content: str = ""


@dataclass(frozen=True, slots=True)
class Fail:
    """error_env(): the model declares the task infeasible."""


@dataclass(frozen=True, slots=True)
class CallUser: ...


Action = (
    Click | DoubleClick | RightClick | MiddleClick | TripleClick | Hover | LongPress | MouseDown | MouseUp
    | Drag | Scroll | Hotkey | KeyDown | KeyUp | Type | OpenApp | PressHome | PressBack | Wait | GiveAnswer
    | Finished | Fail | CallUser
)  # fmt: skip

TERMINAL = (Finished, Fail, CallUser)

_KINDS: Mapping[str, type[Action]] = {kind.__name__: kind for kind in get_args(Action)}
_HINTS: Mapping[str, Mapping[str, Any]] = {name: get_type_hints(kind) for name, kind in _KINDS.items()}
# Fields that are written only if they have a value.
_SPARSE: Mapping[str, frozenset[str]] = {
    name: frozenset(field.name for field in fields(kind) if field.default is None)
    for name, kind in _KINDS.items()
}
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


def scale(
    action: Action,
    from_size: tuple[float, float],
    to_size: tuple[int, int],
    whole: Callable[[float, float, int], int] = lambda value, source, target: round(value * target / source),
) -> Action:
    """Convert the action's coordinates to an image of another size. Points outside it move to its edge.

    If a model answers in 0..1000, from_size is (1000, 1000). `whole` converts one coordinate to a pixel.

    >>> scale(Click(point=Point(500, 250)), (1000, 1000), (1920, 1080))
    Click(point=Point(x=960.0, y=270.0))
    """

    def scaled(point: Point) -> Point:
        if _is_pointer(point):
            return point
        x, y = (
            float(min(whole(min(max(value, 0), source), source, target), target - 1))
            for value, source, target in zip((point.x, point.y), from_size, to_size, strict=True)
        )
        return Point(x, y)

    return _with_points(action, scaled)


def resolve_pointer(actions: Sequence[Action], pointer: Point) -> tuple[tuple[Action, ...], Point]:
    """The actions with a position instead of `POINTER`, and the position of the pointer after them.

    >>> resolve_pointer([Hover(point=Point(3, 4)), Click(point=POINTER)], Point(0, 0))[0][1]
    Click(point=Point(x=3, y=4))
    """
    resolved: list[Action] = []

    def move(point: Point) -> Point:
        nonlocal pointer
        pointer = pointer if _is_pointer(point) else point
        return pointer

    for action in actions:
        resolved.append(_with_points(action, move))
    return tuple(resolved), pointer


def _is_pointer(point: Point) -> bool:
    return math.isnan(point.x)


def points_of(action: Action) -> list[Point]:
    """The points of an action, in the order in which the pointer reaches them."""
    points: list[Point] = []

    def note(point: Point) -> Point:
        points.append(point)
        return point

    _with_points(action, note)
    return points


def _with_points(action: Action, convert: Callable[[Point], Point]) -> Action:
    """The action with converted points, in the order in which the pointer reaches them."""
    match action:
        case Drag(start=start, end=end):
            return Drag(start=convert(start), end=convert(end))
        case (
            Click() | DoubleClick() | RightClick() | MiddleClick() | TripleClick() | Hover() | LongPress()
            | MouseDown() | MouseUp()
        ):  # fmt: skip
            return replace(action, point=convert(action.point))
        case Scroll(point=Point() as point):
            return replace(action, point=convert(point))
        case _:
            return action


def action_to_json(action: Action) -> dict[str, Any]:
    """For example {"do": "Click", "point": {"x": 3, "y": 4}}."""
    name = type(action).__name__
    given = {
        key: value for key, value in asdict(action).items() if value is not None or key not in _SPARSE[name]
    }
    return {"do": name, **given}


def action_from_json(value: Any, path: str = "action") -> Action:
    """The opposite of `action_to_json`. Every key and type is checked: the caller may be hostile.

    Raises ValueError with the place: "action.keys: must be a list of texts, not None".
    """
    name = value.get("do") if isinstance(value, dict) else value
    if not isinstance(name, str) or name not in _KINDS or not isinstance(value, dict):
        raise ValueError(f"{path}: unknown action {_shown(name)}")
    hints = _HINTS[name]
    if value.keys() | _SPARSE[name] != {"do", *hints}:
        raise ValueError(f"{path}: its keys must be {', '.join(('do', *hints))}, not {_shown([*value])}")
    return _KINDS[name](
        **{key: _argument(value[key], hint, f"{path}.{key}") for key, hint in hints.items() if key in value}
    )


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
    elif hint in (int | None, float | None):
        wanted = "a whole number" if hint == int | None else "a finite number"
        if value is None or (_is_finite(value) and (hint != int | None or type(value) is int)):
            return value
    else:
        assert hint in (Point, Point | None), hint
        wanted = "{x, y} in finite numbers"
        if value is None and hint != Point:
            return None
        if isinstance(value, dict) and value.keys() == {"x", "y"} and all(map(_is_finite, value.values())):
            return Point(**value)
    raise ValueError(f"{path}: must be {wanted}, not {_shown(value)}")


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # 10**400 is no float


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
        case MiddleClick(point=point):
            return f"middle_single(start_box={_box(point)})"
        case TripleClick(point=point):
            return f"left_triple(start_box={_box(point)})"
        case MouseDown(point=point):
            return f"mouse_down(start_box={_box(point)})"
        case MouseUp(point=point):
            return f"mouse_up(start_box={_box(point)})"
        case Hover(point=point):
            return f"hover(start_box={_box(point)})"
        case LongPress(point=point):
            return f"long_press(start_box={_box(point)})"
        case Drag(start=start, end=end):
            return f"drag(start_box={_box(start)}, end_box={_box(end)})"
        case Scroll(point=target, direction=direction, amount=amount):
            notches = "" if amount is None else f", amount='{amount}'"
            return (
                f"scroll({f'start_box={_box(target)}, ' if target else ''}direction='{direction}'{notches})"
            )
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
        case Wait(seconds=seconds):
            return "wait()" if seconds is None else f"wait(seconds='{_number(seconds)}')"
        case GiveAnswer(text=text):
            return f"answer(content={_quoted(text)})"
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
