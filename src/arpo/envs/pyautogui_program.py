"""Converts actions to a pyautogui program, for guests with Python.

The program is built as a syntax tree in which all model output is a literal, so no text can become code.
Terminal actions and phone actions have no counterpart on a desktop and produce no statement. This module
does not import pyautogui.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import arpo.actions as act
from arpo.actions import Action, Direction, Point

Literal = str | int | float

_NOTCHES = 5  # wheel notches per scroll
_HOLD_SECONDS = 1.0  # duration of a long press, a drag, a wait

# pyautogui can type only characters of the keyboard; other text goes through the clipboard. The guest chooses
# the branch, so the structure of the program never depends on the text.
_TYPING = """
if text.isascii():
    pyautogui.write(text)
else:
    import pyperclip
    pyperclip.copy(text)
    pyautogui.hotkey('ctrl', 'v')
"""


def program(actions: Sequence[Action]) -> str:
    """Return a Python program for the actions of one answer.

    >>> print(program([Click(point=Point(105, 63))]))
    import time
    import pyautogui
    pyautogui.click(105, 63)
    """
    body = ast.parse("import time\nimport pyautogui").body
    for action in actions:
        body += _statements(action)
    return ast.unparse(ast.fix_missing_locations(ast.Module(body=body, type_ignores=[])))


def _statements(action: Action) -> list[ast.stmt]:
    match action:
        case act.Click(point=point):
            return [_gui("click", *_pixel(point))]
        case act.DoubleClick(point=point):
            return [_gui("doubleClick", *_pixel(point))]
        case act.RightClick(point=point):
            return [_gui("rightClick", *_pixel(point))]
        case act.MiddleClick(point=point):
            return [_gui("middleClick", *_pixel(point))]
        case act.TripleClick(point=point):
            return [_gui("tripleClick", *_pixel(point))]
        case act.MouseDown(point=point):
            return [_gui("mouseDown", *_pixel(point))]
        case act.MouseUp(point=point):
            return [_gui("mouseUp", *_pixel(point))]
        case act.Hover(point=point):
            return [_gui("moveTo", *_pixel(point))]
        case act.LongPress(point=point):
            return [_gui("moveTo", *_pixel(point)), _gui("mouseDown"), _sleep(), _gui("mouseUp")]
        case act.Drag(start=start, end=end):
            return [_gui("moveTo", *_pixel(start)), _gui("dragTo", *_pixel(end), _HOLD_SECONDS)]
        case act.Scroll(point=point, direction=direction, amount=amount):
            wheel = "scroll" if direction in (Direction.UP, Direction.DOWN) else "hscroll"
            notches = _NOTCHES if amount is None else amount
            sign = 1 if direction in (Direction.UP, Direction.RIGHT) else -1
            return [_gui(wheel, sign * notches, *(_pixel(point) if point else ()))]
        case act.Hotkey(keys=keys):
            return [_gui("hotkey", *keys)]
        case act.KeyDown(key=key):
            return [_gui("keyDown", key)]
        case act.KeyUp(key=key):
            return [_gui("keyUp", key)]
        case act.Type(text=text, submit=submit):
            return [
                _assign("text", text),
                *ast.parse(_TYPING).body,
                *([_gui("press", "enter")] if submit else []),
            ]
        case act.Wait(seconds=seconds):
            return [_sleep(_HOLD_SECONDS if seconds is None else seconds)]
        case _:
            return []


def _gui(function: str, *arguments: Literal) -> ast.stmt:
    return _call("pyautogui", function, *arguments)


def _sleep(seconds: float = _HOLD_SECONDS) -> ast.stmt:
    return _call("time", "sleep", seconds)


def _call(module: str, function: str, *arguments: Literal) -> ast.stmt:
    callee = ast.Attribute(value=ast.Name(id=module, ctx=ast.Load()), attr=function, ctx=ast.Load())
    return ast.Expr(ast.Call(func=callee, args=[ast.Constant(value) for value in arguments], keywords=[]))


def _assign(name: str, value: Literal) -> ast.stmt:
    return ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=ast.Constant(value))


def _pixel(point: Point) -> tuple[int, int]:
    return round(point.x), round(point.y)
