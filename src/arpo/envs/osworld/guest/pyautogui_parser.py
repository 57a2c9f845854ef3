"""Parses pyautogui programs into input events, without executing code.

Supported: imports, pyautogui calls with literal arguments, `time.sleep` and `pyperclip.copy`. For any other
code `parse_program` returns None, and the caller runs the code with Python.

>>> parse_program("import pyautogui; pyautogui.click(105, 63)")
(MovePointer(x=105, y=63, relative=False, seconds=0.0), ClickButton(button=1, times=1, interval=0.0))
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from arpo.envs.osworld.guest.input_events import (
    ButtonDown,
    ButtonUp,
    ClickButton,
    InputEvent,
    KeyChord,
    KeyDown,
    KeyUp,
    MovePointer,
    PressKeys,
    SetClipboard,
    Sleep,
    TurnWheel,
    TypeText,
)

MAX_SECONDS = 60.0
MAX_TEXT_LENGTH = 20_000
MAX_REPEATS = 1000
_MAX_PIXELS = 1e6
_MODULES = {"pyautogui", "time", "pyperclip"}
# Ignored settings of pyautogui: there is no fail-safe here, and the screen decides about pauses.
_IGNORED_SETTINGS = {"FAILSAFE", "PAUSE"}
_BUTTONS = {"left": 1, "primary": 1, 1: 1, "middle": 2, 2: 2, "right": 3, "secondary": 3, 3: 3}


Arguments = dict[str, Any]


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
                case ast.Expr(value=ast.Call() as call):
                    yield from self._call(call)
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

    def _call(self, call: ast.Call) -> Iterator[InputEvent]:
        match call.func:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                function = _FUNCTIONS.get((module, name))
            case _:
                function = None
        if function is None:
            raise _Unsupported
        parameters, make_events = function
        yield from make_events(self._bind(call, parameters))

    def _bind(self, call: ast.Call, parameters: tuple[str, ...]) -> Arguments:
        values = [self._value(each) for each in call.args]
        if parameters[0].startswith("*"):
            bound: Arguments = {parameters[0][1:]: values}
        elif len(values) > len(parameters):
            raise _Unsupported
        else:
            bound = dict(zip(parameters, values, strict=False))
        for keyword in call.keywords:
            if keyword.arg not in parameters or keyword.arg in bound:
                raise _Unsupported
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
    """A number within its range. Larger values are left to Python, which runs with a timeout."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _Unsupported
    return value


def _pixel(value: Any) -> float | None:
    return None if value is None else _number(value, -_MAX_PIXELS, _MAX_PIXELS)


def _seconds(arguments: Arguments, key: str) -> float:
    return float(_number(arguments.get(key, 0.0), 0.0, MAX_SECONDS))


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


def _button(arguments: Arguments) -> int:
    name = arguments.get("button", "left")
    key = name.lower() if isinstance(name, str) else name
    if not isinstance(key, str | int) or key not in _BUTTONS:
        raise _Unsupported
    return _BUTTONS[key]


def _move(arguments: Arguments, relative: bool = False) -> Iterator[InputEvent]:
    x, y = (
        (arguments.get("xOffset"), arguments.get("yOffset"))
        if relative
        else (arguments.get("x"), arguments.get("y"))
    )
    if isinstance(x, list | tuple):
        if len(x) != 2:
            raise _Unsupported
        x, y = x
    if x is None and y is None:
        return
    yield MovePointer(x=_pixel(x), y=_pixel(y), relative=relative, seconds=_seconds(arguments, "duration"))


def _click(arguments: Arguments, times: int = 1, button: str = "left") -> Iterator[InputEvent]:
    yield from _move(arguments)
    count = _count(arguments.get("clicks", times))
    yield ClickButton(
        button=_button({"button": button} | arguments), times=count, interval=_seconds(arguments, "interval")
    )


def _drag(arguments: Arguments, relative: bool = False) -> Iterator[InputEvent]:
    if not arguments.get("mouseDownUp", True):
        yield from _move(arguments, relative)
        return
    yield ButtonDown(button=_button(arguments))
    yield from _move(arguments, relative)
    yield ButtonUp(button=_button(arguments))


def _button_down(arguments: Arguments) -> Iterator[InputEvent]:
    yield from _move(arguments)
    yield ButtonDown(button=_button(arguments))


def _button_up(arguments: Arguments) -> Iterator[InputEvent]:
    yield from _move(arguments)
    yield ButtonUp(button=_button(arguments))


def _wheel(arguments: Arguments, horizontal: bool = False) -> Iterator[InputEvent]:
    yield from _move(arguments)
    yield TurnWheel(notches=_count(arguments["clicks"]), horizontal=horizontal)


def _press(arguments: Arguments) -> Iterator[InputEvent]:
    times = _count(arguments.get("presses", 1))
    yield PressKeys(keys=_keys(arguments["keys"]), times=times, interval=_seconds(arguments, "interval"))


def _chord(arguments: Arguments) -> Iterator[InputEvent]:
    keys = arguments["args"]
    yield KeyChord(keys=_keys(keys[0] if len(keys) == 1 and isinstance(keys[0], list | tuple) else keys))


def _key_down(arguments: Arguments) -> Iterator[InputEvent]:
    yield from (KeyDown(key=key) for key in _keys(_text(arguments["key"])))


def _key_up(arguments: Arguments) -> Iterator[InputEvent]:
    yield from (KeyUp(key=key) for key in _keys(_text(arguments["key"])))


def _write(arguments: Arguments) -> Iterator[InputEvent]:
    message, interval = arguments["message"], _seconds(arguments, "interval")
    if isinstance(message, list):
        yield PressKeys(keys=_keys(message), times=1, interval=interval)
    else:
        yield TypeText(text=_text(message), interval=interval)


def _sleep(arguments: Arguments) -> Iterator[InputEvent]:
    yield Sleep(seconds=_number(arguments["seconds"], 0.0, MAX_SECONDS))


def _copy(arguments: Arguments) -> Iterator[InputEvent]:
    yield SetClipboard(text=_text(arguments["text"]))


_POSITION = ("x", "y")
_MOVEMENT = ("duration", "tween", "logScreenshot", "_pause")
_ANY_BUTTON_CLICK = (*_POSITION, "interval", "button", *_MOVEMENT)
_ONE_BUTTON_CLICK = (*_POSITION, "interval", *_MOVEMENT)
_OFFSET = ("xOffset", "yOffset")
_DRAG = ("duration", "tween", "button", "logScreenshot", "_pause", "mouseDownUp")
_SCROLL = ("clicks", *_POSITION, "logScreenshot", "_pause")

# Function name to parameters, in pyautogui's order, and the generator of its events.
_PYAUTOGUI_FUNCTIONS: dict[str, tuple[tuple[str, ...], Callable[[Arguments], Iterator[InputEvent]]]] = {
    "click": ((*_POSITION, "clicks", "interval", "button", *_MOVEMENT), _click),
    "leftClick": (_ONE_BUTTON_CLICK, _click),
    "rightClick": (_ONE_BUTTON_CLICK, partial(_click, button="right")),
    "middleClick": (_ONE_BUTTON_CLICK, partial(_click, button="middle")),
    "doubleClick": (_ANY_BUTTON_CLICK, partial(_click, times=2)),
    "tripleClick": (_ANY_BUTTON_CLICK, partial(_click, times=3)),
    "mouseDown": ((*_POSITION, "button", *_MOVEMENT), _button_down),
    "mouseUp": ((*_POSITION, "button", *_MOVEMENT), _button_up),
    "moveTo": ((*_POSITION, *_MOVEMENT), _move),
    "move": ((*_OFFSET, *_MOVEMENT), partial(_move, relative=True)),
    "moveRel": ((*_OFFSET, *_MOVEMENT), partial(_move, relative=True)),
    "dragTo": ((*_POSITION, *_DRAG), _drag),
    "drag": ((*_OFFSET, *_DRAG), partial(_drag, relative=True)),
    "dragRel": ((*_OFFSET, *_DRAG), partial(_drag, relative=True)),
    "scroll": (_SCROLL, _wheel),
    "vscroll": (_SCROLL, _wheel),
    "hscroll": (_SCROLL, partial(_wheel, horizontal=True)),
    "press": (("keys", "presses", "interval", "logScreenshot", "_pause"), _press),
    "keyDown": (("key", "logScreenshot", "_pause"), _key_down),
    "keyUp": (("key", "logScreenshot", "_pause"), _key_up),
    "hotkey": (("*args", "interval", "logScreenshot", "_pause"), _chord),
    "write": (("message", "interval", "logScreenshot", "_pause"), _write),
    "typewrite": (("message", "interval", "logScreenshot", "_pause"), _write),
    "sleep": (("seconds",), _sleep),
}
_FUNCTIONS = {("pyautogui", name): function for name, function in _PYAUTOGUI_FUNCTIONS.items()} | {
    ("time", "sleep"): (("seconds",), _sleep),
    ("pyperclip", "copy"): (("text",), _copy),
}
