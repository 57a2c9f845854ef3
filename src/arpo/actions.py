"""The actions of UI-TARS, typed: how they are written (`render`) and moved between pixel grids (`scale`).

Reading a model's text is `arpo.parsing`; nothing here sees a string that a model wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Direction(StrEnum):
    UP = "up"
    DOWN = "down"
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, slots=True)
class Point:
    """A place in pixels; of the model's image when parsed, of the screen after `scale`."""

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
    """Keys pressed together, in canonical names: ("ctrl", "c"), ("pagedown",)."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDown:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUp:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """Text to type; `submit` presses Enter after it (a trailing newline in the model's text)."""

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
    """error_env(): the model judges that the task cannot be done."""


@dataclass(frozen=True, slots=True)
class CallUser: ...


Action = (
    Click | DoubleClick | RightClick | Hover | LongPress | Drag | Scroll | Hotkey | KeyDown | KeyUp | Type
    | OpenApp | PressHome | PressBack | Wait | Finished | Fail | CallUser
)  # fmt: skip

TERMINAL = (Finished, Fail, CallUser)

_ESCAPES = str.maketrans({"\\": r"\\", "'": r"\'", "\n": r"\n", "\r": r"\r", "\t": r"\t"})


def up_to_terminal(actions: Sequence[Action]) -> tuple[Action, ...]:
    """The actions that count: what follows the first terminal one is dropped."""
    for index, action in enumerate(actions):
        if isinstance(action, TERMINAL):
            return tuple(actions[: index + 1])
    return tuple(actions)


def render(actions: Sequence[Action], thought: str = "") -> str:
    r"""An answer in the action language.

    >>> render([Click(point=Point(105, 63))], "open it")
    "Thought: open it\nAction: click(start_box='(105,63)')"
    """
    calls = "\n\n".join(_call(action) for action in actions)
    return f"Thought: {thought}\nAction: {calls}" if thought else f"Action: {calls}"


def scale(action: Action, from_size: tuple[int, int], to_size: tuple[int, int]) -> Action:
    """The action in another grid of pixels; a place beyond the screen becomes the last pixel.

    A model that answers in 0..1000 has from_size (1000, 1000).
    """

    def moved(point: Point) -> Point:
        x, y = (
            float(min(round(min(max(value, 0), of) * to / of), to - 1))
            for value, of, to in zip((point.x, point.y), from_size, to_size, strict=True)
        )
        return Point(x, y)

    match action:
        case Click(point=point) | DoubleClick(point=point) | RightClick(point=point):
            return replace(action, point=moved(point))
        case Hover(point=point) | LongPress(point=point) | Scroll(point=Point() as point):
            return replace(action, point=moved(point))
        case Drag(start=start, end=end):
            return Drag(start=moved(start), end=moved(end))
        case _:
            return action


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
        case Scroll(point=place, direction=direction):
            return f"scroll({f'start_box={_box(place)}, ' if place else ''}direction='{direction}')"
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
    """A written + stands between keys, so the key of that name is spelled out."""
    return _quoted(" ".join("plus" if key == "+" else key for key in keys))
