"""pyautogui programs as data: what is understood, and what is left to Python."""

import ast

import pytest

from arpo.actions import Action, Direction, Drag, Hotkey, Point, RightClick, Scroll, Type, Wait
from arpo.actions import Click as ClickAction
from arpo.envs.osworld.guest.acts import (
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
from arpo.envs.osworld.guest.program import parse
from arpo.envs.pyautogui_program import program

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "


def move(x, y, seconds=0.0):
    return Move(x=x, y=y, relative=False, seconds=seconds)


def click(button=1, times=1, interval=0.0):
    return Click(button=button, times=times, interval=interval)


def write(text):
    return Write(text=text, interval=0.0)


@pytest.mark.parametrize(
    ("code", "acts"),
    [
        ("pyautogui.click(105, 63)", (move(105, 63), click())),
        ("pyautogui.click(x=1, y=2, button='right', clicks=2)", (move(1, 2), click(3, 2))),
        ("pyautogui.click((7, 8))", (move(7, 8), click())),
        ("pyautogui.click()", (click(),)),
        ("pyautogui.click(1, 2, 3, 0.5, 'middle')", (move(1, 2), click(2, 3, 0.5))),
        ("pyautogui.doubleClick(9, 9)", (move(9, 9), click(times=2))),
        ("pyautogui.tripleClick()", (click(times=3),)),
        ("pyautogui.rightClick(9, 9)", (move(9, 9), click(3))),
        ("pyautogui.middleClick()", (click(2),)),
        ("pyautogui.click(button=pyautogui.RIGHT)", (click(3),)),
        ("pyautogui.moveTo(3, 4, 0.5, pyautogui.easeInQuad)", (move(3, 4, 0.5),)),
        ("pyautogui.moveTo()", ()),
        ("pyautogui.moveRel(5, -6)", (Move(x=5, y=-6, relative=True, seconds=0.0),)),
        (
            "pyautogui.dragTo(10, 20, duration=1.0, button='left', mouseDownUp=True)",
            (Hold(button=1), move(10, 20, 1.0), Release(button=1)),
        ),
        ("pyautogui.dragTo(10, 20, mouseDownUp=False)", (move(10, 20),)),
        ("pyautogui.mouseDown(1, 2); pyautogui.mouseUp()", (move(1, 2), Hold(button=1), Release(button=1))),
        ("pyautogui.scroll(-5, 30, 40)", (move(30, 40), Wheel(notches=-5, horizontal=False))),
        ("pyautogui.hscroll(2)", (Wheel(notches=2, horizontal=True),)),
        ("pyautogui.press('Enter')", (Tap(keys=("enter",), times=1, interval=0.0),)),
        ("pyautogui.press(['a', 'B'], presses=2)", (Tap(keys=("a", "B"), times=2, interval=0.0),)),
        ("pyautogui.hotkey('Ctrl', 'S')", (Chord(keys=("ctrl", "S")),)),
        ("pyautogui.hotkey(['shift', 'ctrl', 'e'])", (Chord(keys=("shift", "ctrl", "e")),)),
        ("pyautogui.keyDown('shift'); pyautogui.keyUp('shift')", (KeyDown(key="shift"), KeyUp(key="shift"))),
        ("pyautogui.write('a <b> é')", (write("a <b> é"),)),
        ("pyautogui.typewrite(message='x', interval=0.1)", (Write(text="x", interval=0.1),)),
        ("pyautogui.typewrite(['a', 'enter'])", (Tap(keys=("a", "enter"), times=1, interval=0.0),)),
        ("import pyperclip; pyperclip.copy('é'); time.sleep(2)", (Copy(text="é"), Sleep(seconds=2))),
        ("pyautogui.PAUSE = 0.1", ()),
    ],
)
def test_calls_with_literals_become_acts(code, acts):
    assert parse(PREFIX + code) == acts


@pytest.mark.parametrize(
    "code",
    [
        "import platform; print(platform.system())",
        "import os; os.system('true')",
        "from os import system",
        "import pyautogui as gui",
        "pyautogui.click(*[1, 2])",
        "pyautogui.click(1 + 2, 3)",
        "pyautogui.click('button.png')",
        "pyautogui.click(1, 2, wrong=3)",
        "pyautogui.click(1, x=2)",
        "pyautogui.click(button='thumb')",
        "pyautogui.press(5)",
        "pyautogui.press()",
        "pyautogui.write(open('/etc/passwd').read())",
        "pyautogui.position()",
        "pyautogui.__class__('x')",
        "time.sleep('1')",
        "x = pyautogui.size()",
        "for _ in range(3): pyautogui.click()",
        "if text.isascii(): pyautogui.click()",
        "text = 5\nif text.isascii(): pyautogui.click()",
        "(lambda: 0)()",
        "pyautogui.click(",
        "time.sleep(-1)",
        "time.sleep(3600)",
        "time.sleep(1e999)",
        "pyautogui.moveTo(1e999, 0)",
        "pyautogui.press('a', presses=1000000000)",
        "pyautogui.scroll(-1000000000)",
        f"pyautogui.write({'x' * 30_000!r})",
    ],
)
def test_everything_else_is_left_to_python(code):
    assert parse(PREFIX + code) is None


def test_a_text_can_not_become_code():
    nasty = "'); import os; os.system('reboot') #"
    assert parse(PREFIX + program([Type(text=nasty, submit=False)])) == (write(nasty),)


def test_our_own_programs_are_understood_whole():
    actions: list[Action] = [
        ClickAction(point=Point(10.4, 20.6)),
        RightClick(point=Point(1, 2)),
        Drag(start=Point(1, 1), end=Point(5, 9)),
        Scroll(point=Point(3, 3), direction=Direction.DOWN),
        Hotkey(keys=("ctrl", "c")),
        Type(text="naïve", submit=True),
        Wait(),
    ]
    assert parse(PREFIX + program(actions)) == (
        move(10, 21),
        click(),
        move(1, 2),
        click(3),
        move(1, 1),
        Hold(button=1),
        move(5, 9, 1.0),
        Release(button=1),
        move(3, 3),
        Wheel(notches=-5, horizontal=False),
        Chord(keys=("ctrl", "c")),
        write("naïve"),
        Tap(keys=("enter",), times=1, interval=0.0),
        Sleep(seconds=1.0),
    )


def test_a_deep_program_is_refused_not_followed():
    assert parse("pyautogui.click(" + "(" * 5000 + "1" + ")" * 5000 + ")") is None
    assert ast.parse("1")  # the parser is still in order
