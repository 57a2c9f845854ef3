"""Parses pyautogui programs into input events, without executing code.

Supported: imports, common pyautogui calls with literal arguments, `time.sleep` and `pyperclip.copy`. For any
other code `parse_program` returns None, and the caller runs the code with Python and pyautogui itself.

>>> parse_program("import pyautogui; pyautogui.click(105, 63)")
(MovePointer(x=105, y=63, seconds=0.0), ClickButton(button=1, times=1, interval=0.0))
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

MAX_SECONDS = 60.0
MAX_TEXT_LENGTH = 20_000
MAX_REPEATS = 1000
_MAX_PIXELS = 1e6
_MODULES = {"pyautogui", "time", "pyperclip"}
# Ignored settings of pyautogui: there is no fail-safe here, and the screen decides about pauses.
_IGNORED_SETTINGS = {"FAILSAFE", "PAUSE"}
_IGNORED_KEYWORDS = {"tween", "logScreenshot", "_pause"}
_BUTTONS = {"left": 1, "primary": 1, 1: 1, "middle": 2, 2: 2, "right": 3, "secondary": 3, 3: 3}  # X's numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePointer:
    """A coordinate of None does not change."""

    x: float | None
    y: float | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickButton:
    button: int
    times: int
    interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SetButton:
    button: int
    down: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWheel:
    """Positive notches scroll up, or right if horizontal."""

    notches: int
    horizontal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetKey:
    key: str
    down: bool


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
    MovePointer | ClickButton | SetButton | TurnWheel | SetKey | PressKeys | KeyChord | TypeText
    | SetClipboard | Sleep
)  # fmt: skip


class _Unsupported(Exception):
    """The program needs Python."""


def parse_program(code: str) -> tuple[InputEvent, ...] | None:
    try:
        tree = ast.parse(code)
        return tuple(_Parser().events(tree.body))
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, _Unsupported):
        return None


class _Parser:
    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    def events(self, statements: list[ast.stmt]) -> Iterator[InputEvent]:
        for statement in statements:
            match statement:
                case ast.Import(names=names) if all(
                    each.name in _MODULES and not each.asname for each in names
                ):
                    pass
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="pyautogui"), attr=name)]) if (
                    name in _IGNORED_SETTINGS
                ):
                    self._value(statement.value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._names[name] = self._value(value)
                case ast.If(test=test, body=body) if self._tests_if_typeable(test):
                    yield from self.events(body)
                case ast.Expr(value=ast.Call(func=ast.Attribute(ast.Name(id=module), name)) as call):
                    yield from self._call(_FUNCTIONS[f"{module}.{name}"], call)
                case ast.Pass():
                    pass
                case _:
                    raise _Unsupported

    def _tests_if_typeable(self, test: ast.expr) -> bool:
        """`text.isascii()` tests if pyautogui can type a text. This guest types any text: always true."""
        match test:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="isascii"), args=[], keywords=[]):
                return isinstance(self._names.get(name), str)
        return False

    def _call(self, function: Callable[..., Iterator[InputEvent]], call: ast.Call) -> Iterator[InputEvent]:
        """Arguments that pyautogui's function would not accept raise TypeError."""
        keywords = {each.arg: each.value for each in call.keywords if each.arg not in _IGNORED_KEYWORDS}
        return function(
            *map(self._value, call.args), **{str(name): self._value(each) for name, each in keywords.items()}
        )

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.Attribute(value=ast.Name(id="pyautogui"), attr=name) if name.startswith("ease"):
                return name
            case ast.Attribute(value=ast.Name(id="pyautogui"), attr=("LEFT" | "MIDDLE" | "RIGHT") as name):
                return name.lower()
        return ast.literal_eval(node)


def _number(value: Any, low: float, high: float) -> float:
    """A number within its range. Larger values are left to Python, which runs with a timeout."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _Unsupported
    return value


def _pixel(value: Any) -> float | None:
    return None if value is None else _number(value, -_MAX_PIXELS, _MAX_PIXELS)


def _seconds(value: Any) -> float:
    return float(_number(value, 0.0, MAX_SECONDS))


def _count(value: Any) -> int:
    return int(_number(value, -MAX_REPEATS, MAX_REPEATS))


def _keys(value: Any) -> tuple[str, ...]:
    """One key name or a list of names, as in pyautogui. Case matters only for single letters."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise _Unsupported
    return tuple(name.lower() if len(name) > 1 else name for name in names)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT_LENGTH:
        raise _Unsupported
    return value


def _button(name: Any) -> int:
    return _BUTTONS[name.lower() if isinstance(name, str) else name]


# The functions of pyautogui, with its parameters in its order.


def _move(x: Any = None, y: Any = None, duration: Any = 0.0, tween: Any = None) -> Iterator[InputEvent]:
    if isinstance(x, list | tuple):
        x, y = x
    if x is not None or y is not None:
        yield MovePointer(x=_pixel(x), y=_pixel(y), seconds=_seconds(duration))


def _click(
    x: Any = None,
    y: Any = None,
    clicks: Any = 1,
    interval: Any = 0.0,
    button: Any = "left",
    duration: Any = 0.0,
) -> Iterator[InputEvent]:
    yield from _move(x, y, duration)
    yield ClickButton(button=_button(button), times=_count(clicks), interval=_seconds(interval))


def _double_click(
    x: Any = None,
    y: Any = None,
    interval: Any = 0.0,
    button: Any = "left",
    duration: Any = 0.0,
    *,
    times: int,
) -> Iterator[InputEvent]:
    return _click(x, y, times, interval, button, duration)


def _other_click(
    x: Any = None, y: Any = None, interval: Any = 0.0, duration: Any = 0.0, *, own_button: str
) -> Iterator[InputEvent]:
    return _click(x, y, 1, interval, own_button, duration)


def _drag(
    x: Any = None, y: Any = None, duration: Any = 0.0, tween: Any = None, button: Any = "left",
    mouseDownUp: Any = True,
) -> Iterator[InputEvent]:  # fmt: skip
    moves = _move(x, y, duration)
    yield from _between(_button(button), moves) if mouseDownUp else moves


def _between(button: int, moves: Iterator[InputEvent]) -> Iterator[InputEvent]:
    yield SetButton(button=button, down=True)
    yield from moves
    yield SetButton(button=button, down=False)


def _set_button(
    x: Any = None, y: Any = None, button: Any = "left", duration: Any = 0.0, *, down: bool
) -> Iterator[InputEvent]:
    yield from _move(x, y, duration)
    yield SetButton(button=_button(button), down=down)


def _wheel(clicks: Any, x: Any = None, y: Any = None, *, horizontal: bool) -> Iterator[InputEvent]:
    yield from _move(x, y)
    yield TurnWheel(notches=_count(clicks), horizontal=horizontal)


def _press(keys: Any, presses: Any = 1, interval: Any = 0.0) -> Iterator[InputEvent]:
    yield PressKeys(keys=_keys(keys), times=_count(presses), interval=_seconds(interval))


def _chord(*keys: Any, interval: Any = 0.0) -> Iterator[InputEvent]:
    yield KeyChord(keys=_keys(keys[0] if len(keys) == 1 and isinstance(keys[0], list | tuple) else keys))


def _set_key(key: Any, *, down: bool) -> Iterator[InputEvent]:
    yield from (SetKey(key=each, down=down) for each in _keys(_text(key)))


def _write(message: Any, interval: Any = 0.0) -> Iterator[InputEvent]:
    if isinstance(message, list):
        return _press(message, 1, interval)
    return iter([TypeText(text=_text(message), interval=_seconds(interval))])


def _sleep(seconds: Any) -> Iterator[InputEvent]:
    yield Sleep(seconds=_number(seconds, 0.0, MAX_SECONDS))


def _copy(text: Any) -> Iterator[InputEvent]:
    yield SetClipboard(text=_text(text))


_FUNCTIONS: dict[str, Callable[..., Iterator[InputEvent]]] = {
    "pyautogui.click": _click,
    "pyautogui.rightClick": partial(_other_click, own_button="right"),
    "pyautogui.middleClick": partial(_other_click, own_button="middle"),
    "pyautogui.doubleClick": partial(_double_click, times=2),
    "pyautogui.tripleClick": partial(_double_click, times=3),
    "pyautogui.mouseDown": partial(_set_button, down=True),
    "pyautogui.mouseUp": partial(_set_button, down=False),
    "pyautogui.moveTo": _move,
    "pyautogui.dragTo": _drag,
    "pyautogui.scroll": partial(_wheel, horizontal=False),
    "pyautogui.hscroll": partial(_wheel, horizontal=True),
    "pyautogui.press": _press,
    "pyautogui.keyDown": partial(_set_key, down=True),
    "pyautogui.keyUp": partial(_set_key, down=False),
    "pyautogui.hotkey": _chord,
    "pyautogui.write": _write,
    "pyautogui.typewrite": _write,
    "pyautogui.sleep": _sleep,
    "time.sleep": _sleep,
    "pyperclip.copy": _copy,
}
