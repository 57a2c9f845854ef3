"""The pyautogui parser: supported programs become input events, any other program returns None."""

import ast

import pytest

from arpo.actions import Action, Click, Direction, Drag, Hotkey, Point, RightClick, Scroll, Type, Wait
from arpo.envs.osworld.guest.pyautogui_parser import (
    ClickButton,
    KeyChord,
    MovePointer,
    PressKeys,
    SetButton,
    SetClipboard,
    SetKey,
    Sleep,
    TurnWheel,
    TypeText,
    parse_program,
)
from arpo.envs.pyautogui_program import program

PREFIX = "import pyautogui; import time; pyautogui.FAILSAFE = False; "


def move(x, y, seconds=0.0):
    return MovePointer(x=x, y=y, seconds=seconds)


def click(button=1, times=1, interval=0.0):
    return ClickButton(button=button, times=times, interval=interval)


def write(text):
    return TypeText(text=text, interval=0.0)


@pytest.mark.parametrize(
    ("code", "events"),
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
        (
            "pyautogui.dragTo(10, 20, duration=1.0, button='left', mouseDownUp=True)",
            (SetButton(button=1, down=True), move(10, 20, 1.0), SetButton(button=1, down=False)),
        ),
        ("pyautogui.dragTo(10, 20, mouseDownUp=False)", (move(10, 20),)),
        (
            "pyautogui.mouseDown(1, 2); pyautogui.mouseUp()",
            (move(1, 2), SetButton(button=1, down=True), SetButton(button=1, down=False)),
        ),
        ("pyautogui.scroll(-5, 30, 40)", (move(30, 40), TurnWheel(notches=-5, horizontal=False))),
        ("pyautogui.hscroll(2)", (TurnWheel(notches=2, horizontal=True),)),
        ("pyautogui.press('Enter')", (PressKeys(keys=("enter",), times=1, interval=0.0),)),
        ("pyautogui.press(['a', 'B'], presses=2)", (PressKeys(keys=("a", "B"), times=2, interval=0.0),)),
        ("pyautogui.hotkey('Ctrl', 'S')", (KeyChord(keys=("ctrl", "S")),)),
        ("pyautogui.hotkey(['shift', 'ctrl', 'e'])", (KeyChord(keys=("shift", "ctrl", "e")),)),
        (
            "pyautogui.keyDown('shift'); pyautogui.keyUp('shift')",
            (SetKey(key="shift", down=True), SetKey(key="shift", down=False)),
        ),
        ("pyautogui.write('a <b> é')", (write("a <b> é"),)),
        ("pyautogui.typewrite(message='x', interval=0.1)", (TypeText(text="x", interval=0.1),)),
        ("pyautogui.typewrite(['a', 'enter'])", (PressKeys(keys=("a", "enter"), times=1, interval=0.0),)),
        ("import pyperclip; pyperclip.copy('é'); time.sleep(2)", (SetClipboard(text="é"), Sleep(seconds=2))),
        ("pyautogui.PAUSE = 0.1", ()),
    ],
)
def test_calls_with_literals_become_events(code, events):
    assert parse_program(PREFIX + code) == events


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
        "pyautogui.moveRel(5, -6)",
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
def test_other_programs_are_not_parsed(code):
    assert parse_program(PREFIX + code) is None


def test_a_text_cannot_become_code():
    nasty = "'); import os; os.system('reboot') #"
    assert parse_program(PREFIX + program([Type(text=nasty, submit=False)])) == (write(nasty),)


def test_programs_of_arpo_are_parsed_completely():
    actions: list[Action] = [
        Click(point=Point(10.4, 20.6)),
        RightClick(point=Point(1, 2)),
        Drag(start=Point(1, 1), end=Point(5, 9)),
        Scroll(point=Point(3, 3), direction=Direction.DOWN),
        Hotkey(keys=("ctrl", "c")),
        Type(text="naïve", submit=True),
        Wait(),
    ]
    assert parse_program(PREFIX + program(actions)) == (
        move(10, 21),
        click(),
        move(1, 2),
        click(3),
        move(1, 1),
        SetButton(button=1, down=True),
        move(5, 9, 1.0),
        SetButton(button=1, down=False),
        move(3, 3),
        TurnWheel(notches=-5, horizontal=False),
        KeyChord(keys=("ctrl", "c")),
        write("naïve"),
        PressKeys(keys=("enter",), times=1, interval=0.0),
        Sleep(seconds=1.0),
    )


def test_a_deeply_nested_program_is_not_parsed():
    assert parse_program("pyautogui.click(" + "(" * 5000 + "1" + ")" * 5000 + ")") is None
    assert ast.parse("1")  # the parser still works
