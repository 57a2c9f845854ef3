"""Reading pyautogui programs: what `python -c` would do with mouse and keyboard, as data.

Only programs that consist of imports, calls of pyautogui with literals, sleeps and copies to the clipboard
are understood; for any other text `parse` answers None, and the caller runs it with Python. Nothing is
evaluated.

>>> parse("import pyautogui; pyautogui.click(105, 63)")
(Move(x=105, y=63, relative=False, seconds=0.0), Click(button=1, times=1, interval=0.0))
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from arpo.envs.osworld.guest.acts import (
    Act,
    Chord,
    Click,
    Copy,
    Hold,
    KeyDown,
    KeyUp,
    Move,
    Release,
    Sleep,
    Tap,
    Wheel,
    Write,
)

LONGEST_SECONDS = 60.0
LONGEST_TEXT = 20_000
MOST_TIMES = 1000
_FAR = 1e6  # pixels
_MODULES = {"pyautogui", "time", "pyperclip"}
_SWITCHES = {
    "FAILSAFE",
    "PAUSE",
}  # of pyautogui; there is no fail-safe here, and pauses are as long as needed
_BUTTONS = {"left": 1, "primary": 1, 1: 1, "middle": 2, 2: 2, "right": 3, "secondary": 3, 3: 3}


Arguments = dict[str, Any]


class _Unknown(Exception):
    """Not a program of the kind that is read here."""


def parse(code: str) -> tuple[Act, ...] | None:
    try:
        tree = ast.parse(code)
        return tuple(_Reader().acts(tree.body))
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, _Unknown):
        return None


class _Reader:
    def __init__(self) -> None:
        self._names: dict[str, Any] = {}

    def acts(self, statements: list[ast.stmt]) -> Iterator[Act]:
        for statement in statements:
            match statement:
                case ast.Import(names=names) if all(
                    each.name in _MODULES and not each.asname for each in names
                ):
                    pass
                case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="pyautogui"), attr=name)]) if (
                    name in _SWITCHES
                ):
                    self._value(statement.value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._names[name] = self._value(value)
                case ast.If(test=test, body=body) if self._asks_for_keyboard(test):
                    yield from self.acts(body)
                case ast.Expr(value=ast.Call() as call):
                    yield from self._call(call)
                case ast.Pass():
                    pass
                case _:
                    raise _Unknown

    def _asks_for_keyboard(self, test: ast.expr) -> bool:
        """`text.isascii()`: whether pyautogui could type it. Here all text can be typed: it is so."""
        match test:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="isascii"), args=[], keywords=[]):
                return isinstance(self._names.get(name), str)
        return False

    def _call(self, call: ast.Call) -> Iterator[Act]:
        match call.func:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                function = _FUNCTIONS.get((module, name))
            case _:
                function = None
        if function is None:
            raise _Unknown
        parameters, acts = function
        yield from acts(self._bind(call, parameters))

    def _bind(self, call: ast.Call, parameters: tuple[str, ...]) -> Arguments:
        values = [self._value(each) for each in call.args]
        if parameters[0].startswith("*"):
            bound: Arguments = {parameters[0][1:]: values}
        elif len(values) > len(parameters):
            raise _Unknown
        else:
            bound = dict(zip(parameters, values, strict=False))
        for keyword in call.keywords:
            if keyword.arg not in parameters or keyword.arg in bound:
                raise _Unknown
            bound[keyword.arg] = self._value(keyword.value)
        return bound

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name) if name in self._names:
                return self._names[name]
            case ast.Attribute(value=ast.Name(id="pyautogui"), attr=name) if name.startswith(
                ("ease", "linear")
            ):
                return name
            case ast.Attribute(value=ast.Name(id="pyautogui"), attr=("LEFT" | "MIDDLE" | "RIGHT") as name):
                return name.lower()
        return ast.literal_eval(node)


def _number(value: Any, low: float, high: float) -> float:
    """A number in its range. What is beyond reason is left to Python too, which has limited time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _Unknown
    return value


def _pixel(value: Any) -> float | None:
    return None if value is None else _number(value, -_FAR, _FAR)


def _seconds(of: Arguments, key: str) -> float:
    return float(_number(of.get(key, 0.0), 0.0, LONGEST_SECONDS))


def _count(value: Any) -> int:
    return int(_number(value, -MOST_TIMES, MOST_TIMES))


def _keys(value: Any) -> tuple[str, ...]:
    """Keys as pyautogui takes them: one name, or a list of names; case matters for single letters only."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise _Unknown
    return tuple(name.lower() if len(name) > 1 else name for name in names)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise _Unknown
    return value


def _button(of: Arguments) -> int:
    name = of.get("button", "left")
    key = name.lower() if isinstance(name, str) else name
    if not isinstance(key, str | int) or key not in _BUTTONS:
        raise _Unknown
    return _BUTTONS[key]


def _move(of: Arguments, relative: bool = False) -> Iterator[Act]:
    x, y = (of.get("xOffset"), of.get("yOffset")) if relative else (of.get("x"), of.get("y"))
    if isinstance(x, list | tuple):
        if len(x) != 2:
            raise _Unknown
        x, y = x
    if x is None and y is None:
        return
    yield Move(x=_pixel(x), y=_pixel(y), relative=relative, seconds=_seconds(of, "duration"))


def _click(of: Arguments, times: int = 1, button: str = "left") -> Iterator[Act]:
    yield from _move(of)
    count = _count(of.get("clicks", times))
    yield Click(button=_button({"button": button} | of), times=count, interval=_seconds(of, "interval"))


def _drag(of: Arguments, relative: bool = False) -> Iterator[Act]:
    if not of.get("mouseDownUp", True):
        yield from _move(of, relative)
        return
    yield Hold(button=_button(of))
    yield from _move(of, relative)
    yield Release(button=_button(of))


def _hold(of: Arguments) -> Iterator[Act]:
    yield from _move(of)
    yield Hold(button=_button(of))


def _release(of: Arguments) -> Iterator[Act]:
    yield from _move(of)
    yield Release(button=_button(of))


def _wheel(of: Arguments, horizontal: bool = False) -> Iterator[Act]:
    yield from _move(of)
    yield Wheel(notches=_count(of["clicks"]), horizontal=horizontal)


def _tap(of: Arguments) -> Iterator[Act]:
    times = _count(of.get("presses", 1))
    yield Tap(keys=_keys(of["keys"]), times=times, interval=_seconds(of, "interval"))


def _chord(of: Arguments) -> Iterator[Act]:
    keys = of["args"]
    yield Chord(keys=_keys(keys[0] if len(keys) == 1 and isinstance(keys[0], list | tuple) else keys))


def _key_down(of: Arguments) -> Iterator[Act]:
    yield from (KeyDown(key=key) for key in _keys(_text(of["key"])))


def _key_up(of: Arguments) -> Iterator[Act]:
    yield from (KeyUp(key=key) for key in _keys(_text(of["key"])))


def _write(of: Arguments) -> Iterator[Act]:
    message, interval = of["message"], _seconds(of, "interval")
    if isinstance(message, list):
        yield Tap(keys=_keys(message), times=1, interval=interval)
    else:
        yield Write(text=_text(message), interval=interval)


def _sleep(of: Arguments) -> Iterator[Act]:
    yield Sleep(seconds=_number(of["seconds"], 0.0, LONGEST_SECONDS))


def _copy(of: Arguments) -> Iterator[Act]:
    yield Copy(text=_text(of["text"]))


_PLACE = ("x", "y")
_GLIDE = ("duration", "tween", "logScreenshot", "_pause")
_POINT_AND_CLICK = (*_PLACE, "interval", "button", *_GLIDE)
_SIDE_CLICK = (*_PLACE, "interval", *_GLIDE)
_OFFSET = ("xOffset", "yOffset")
_DRAG = ("duration", "tween", "button", "logScreenshot", "_pause", "mouseDownUp")
_SCROLL = ("clicks", *_PLACE, "logScreenshot", "_pause")

# Parameters in pyautogui's order, and what the call does.
_GUI: dict[str, tuple[tuple[str, ...], Callable[[Arguments], Iterator[Act]]]] = {
    "click": ((*_PLACE, "clicks", "interval", "button", *_GLIDE), _click),
    "leftClick": (_SIDE_CLICK, _click),
    "rightClick": (_SIDE_CLICK, partial(_click, button="right")),
    "middleClick": (_SIDE_CLICK, partial(_click, button="middle")),
    "doubleClick": (_POINT_AND_CLICK, partial(_click, times=2)),
    "tripleClick": (_POINT_AND_CLICK, partial(_click, times=3)),
    "mouseDown": ((*_PLACE, "button", *_GLIDE), _hold),
    "mouseUp": ((*_PLACE, "button", *_GLIDE), _release),
    "moveTo": ((*_PLACE, *_GLIDE), _move),
    "move": ((*_OFFSET, *_GLIDE), partial(_move, relative=True)),
    "moveRel": ((*_OFFSET, *_GLIDE), partial(_move, relative=True)),
    "dragTo": ((*_PLACE, *_DRAG), _drag),
    "drag": ((*_OFFSET, *_DRAG), partial(_drag, relative=True)),
    "dragRel": ((*_OFFSET, *_DRAG), partial(_drag, relative=True)),
    "scroll": (_SCROLL, _wheel),
    "vscroll": (_SCROLL, _wheel),
    "hscroll": (_SCROLL, partial(_wheel, horizontal=True)),
    "press": (("keys", "presses", "interval", "logScreenshot", "_pause"), _tap),
    "keyDown": (("key", "logScreenshot", "_pause"), _key_down),
    "keyUp": (("key", "logScreenshot", "_pause"), _key_up),
    "hotkey": (("*args", "interval", "logScreenshot", "_pause"), _chord),
    "write": (("message", "interval", "logScreenshot", "_pause"), _write),
    "typewrite": (("message", "interval", "logScreenshot", "_pause"), _write),
    "sleep": (("seconds",), _sleep),
}
_FUNCTIONS = {("pyautogui", name): function for name, function in _GUI.items()} | {
    ("time", "sleep"): (("seconds",), _sleep),
    ("pyperclip", "copy"): (("text",), _copy),
}
