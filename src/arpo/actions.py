"""The action language of UI-TARS: typed actions, `parse(text)` and its inverse `render(action)`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Button(StrEnum):
    LEFT = "left"
    RIGHT = "right"


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
