"""What mouse and keyboard can do, one frozen record each. Buttons are X's: 1 left, 2 middle, 3 right."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """None leaves a coordinate as it is."""

    x: float | None
    y: float | None
    relative: bool
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Click:
    button: int
    times: int
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    button: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    button: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """Positive notches are up, or right."""

    notches: int
    horizontal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDown:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUp:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tap:
    """Keys one after the other, all of them so many times."""

    keys: tuple[str, ...]
    times: int
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chord:
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    text: str
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """To the clipboard."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    seconds: float


Act = Move | Click | Hold | Release | Wheel | KeyDown | KeyUp | Tap | Chord | Write | Copy | Sleep
