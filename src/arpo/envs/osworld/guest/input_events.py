"""Mouse and keyboard events as data. Times are in seconds. Buttons are X's: 1 left, 2 middle, 3 right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePointer:
    """A coordinate of None does not change."""

    x: float | None
    y: float | None
    relative: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickButton:
    button: int
    times: int
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonDown:
    button: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ButtonUp:
    button: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWheel:
    """Positive notches scroll up, or right if horizontal."""

    notches: int
    horizontal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDown:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUp:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PressKeys:
    """Presses and releases the keys in sequence, and repeats the sequence `times` times."""

    keys: tuple[str, ...]
    times: int
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChord:
    """Presses the keys in order, then releases them in reverse order."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeText:
    text: str
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetClipboard:
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    seconds: float


InputEvent = (
    MovePointer | ClickButton | ButtonDown | ButtonUp | TurnWheel
    | KeyDown | KeyUp | PressKeys | KeyChord | TypeText | SetClipboard | Sleep
)  # fmt: skip
