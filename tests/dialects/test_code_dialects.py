"""Answers with Python calls, read as data: pyautogui code (OpenCUA) and boxes (GLM-4.5V)."""

import pytest

from arpo.actions import (
    POINTER,
    Click,
    Direction,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    GiveAnswer,
    Hotkey,
    Hover,
    KeyDown,
    MouseDown,
    Point,
    RightClick,
    Scroll,
    TripleClick,
    Type,
    Wait,
)
from arpo.dialects import glm
from arpo.dialects.base import ParseError
from arpo.dialects.pyautogui_code import parse

HERE = Point(10.0, 20.0)


def answer(code):
    return f"# Step 3\n## Thought:\nIt is `there`.\n## Action:\nOpen it\n## Code:\n```python\n{code}\n```"


@pytest.mark.parametrize(
    ("code", "actions"),
    [
        ("pyautogui.click(x=10, y=20)", [Click(point=HERE)]),
        ("pyautogui.click(10, 20.0)", [Click(point=HERE)]),
        ("pyautogui.click([10, 20])", [Click(point=HERE)]),
        ("pyautogui.click()", [Click(point=POINTER)]),
        ("pyautogui.click(10, 20, clicks=2)", [DoubleClick(point=HERE)]),
        ("pyautogui.click(x=10, y=20, button='right')", [RightClick(point=HERE)]),
        ("pyautogui.tripleClick(x=10, y=20)", [TripleClick(point=HERE)]),
        ("computer.triple_click(x=10, y=20)", [TripleClick(point=HERE)]),
        ("import pyautogui\npyautogui.mouseDown(10, 20)", [MouseDown(point=HERE)]),
        (
            "pyautogui.moveTo(x=1, y=2)\npyautogui.dragTo(x=10, y=20, button='left')",
            [Hover(point=Point(1.0, 2.0)), Drag(start=POINTER, end=HERE)],
        ),
        ("pyautogui.scroll(-5)", [Scroll(point=None, direction=Direction.DOWN, amount=5)]),
        ("pyautogui.hscroll(5, 10, 20)", [Scroll(point=HERE, direction=Direction.RIGHT, amount=5)]),
        ("pyautogui.hotkey('ctrl', 'c')", [Hotkey(keys=("ctrl", "c"))]),
        ("pyautogui.hotkey(['ctrl', 'c'])", [Hotkey(keys=("ctrl", "c"))]),
        ("pyautogui.press('Down', presses=2)", [Hotkey(keys=("down",))] * 2),
        ("pyautogui.keyDown('shift')", [KeyDown(key="shift")]),
        ("pyautogui.write(message='it\\'s\\n')", [Type(text="it's", submit=True)]),
        ("pyperclip.copy('é')\npyautogui.hotkey('ctrl', 'v')", [Type(text="é")]),
        ("time.sleep(2)", [Wait(seconds=2.0)]),
        ("computer.wait()", [Wait(seconds=20.0)]),
        ("computer.terminate(status='success')", [Finished()]),
        ("computer.terminate(status='failure')", [Fail()]),
        ("computer.terminate(status='success', answer='''42''')", [GiveAnswer(text="42"), Finished()]),
    ],
)
def test_code_becomes_actions(code, actions):
    assert repr(parse(answer(code)).actions) == repr(tuple(actions))


def test_the_last_block_counts():
    both = answer("pyautogui.click(1, 2)") + "\nno:\n```\npyautogui.click(10, 20)\n```\nand ```"
    assert parse(both).actions == (Click(point=HERE),)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.system('rm')", "unknown function 'os.system'"),
        ("import os", "the answer contains no action|expected a call, got 'import os'"),
        ("__import__('os').system('rm')", "expected the name of a function"),
        ("x = 3", "expected a call, got 'x = 3'"),
        ("for i in range(3): pyautogui.click(1, 2)", "expected a call"),
        ("pyautogui.click(x=width, y=2)", "arguments must be plain values, got Name"),
        ("pyautogui.click(x=1+1, y=2)", "arguments must be plain values, got BinOp"),
        ("pyautogui.click(**{'x': 1})", r"must not use \*\*"),
        ("pyautogui.click(1, 2, x=3)", "has x twice"),
        ("pyautogui.click(1, 2, 3, 4, 5, 6, 7)", "takes 6 arguments, got 7"),
        ("pyautogui.click(x=True, y=2)", "x and y must be numbers"),
        ("pyautogui.click(x=1e400, y=2)", "x and y must be numbers"),
        ("pyautogui.click(1, 2, clicks=9)", "no action has clicks=9"),
        ("pyautogui.dragTo(1, 2, button='right')", "only the left button"),
        ("pyautogui.press('a', presses=99)", "presses must be at most 32"),
        ("pyautogui.press('hyper')", "unknown key 'hyper'"),
        ("pyautogui.click(1, 2)\n" * 33, "more than 32 calls"),
        ("pyautogui.click(" + "(" * 10_000, "nested more than 20 times"),
        ("a" * 30_000, "has 30000 characters, at most 20000"),
        ("pyautogui.click(1, 2", "the code is not Python"),
        ("pyautogui.write('\x00')", "the code is not Python"),
        ("computer.terminate()", "status must be success or failure"),
    ],
)
def test_other_code_is_refused(code, reason):
    with pytest.raises(ParseError, match=reason):
        parse(answer(code))


def test_an_answer_without_code_is_refused():
    with pytest.raises(ParseError, match="contains no block of code"):
        parse("pyautogui.click(1, 2)")


def boxed(call):
    return f"Open it. <|begin_of_box|>{call}<|end_of_box|>\nMemory:\n[]"


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("left_click(start_box='[10,20]', element_info='File')", Click(point=HERE)),
        ("left_click(start_box=[10, 20])", Click(point=HERE)),
        ("right_click(start_box='[10, 20]')", RightClick(point=HERE)),
        ("left_double_click(start_box='[10,20]')", DoubleClick(point=HERE)),
        ("hover(start_box='[10,20]')", Hover(point=HERE)),
        ("left_drag(start_box='[1,2]', end_box='[10,20]')", Drag(start=Point(1.0, 2.0), end=HERE)),
        ("key(keys='ctrl+c')", Hotkey(keys=("ctrl", "c"))),
        ("type(content='hi')", Type(text="hi")),
        (
            "scroll(start_box='[10,20]', direction='down', step=3)",
            Scroll(point=HERE, direction=Direction.DOWN, amount=3),
        ),
        ("WAIT()", Wait(seconds=5.0)),
        ("DONE()", Finished()),
        ("FAIL()", Fail()),
    ],
)
def test_boxes_become_actions(call, action):
    assert glm.parse(boxed(call)).actions == (action,)
    assert glm.parse(f"I open it.\nAction: {call}\nMemory: []").actions == (action,)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("done", r"contains no <\|begin_of_box\|>"),
        (boxed("leap()"), "unknown function 'leap'"),
        (boxed("left_click('[1,2]')"), "takes named arguments only"),
        (boxed("left_click(start_box='here')"), r"needs start_box='\[x,y\]', got 'here'"),
        (
            boxed("scroll(start_box='[1,2]', direction='in')"),
            "one of up, down, left, right, got 'in'",
        ),
        (boxed("key(keys='hyper')"), "unknown key 'hyper'"),
        (boxed(""), "contains no action"),
    ],
)
def test_other_boxes_are_refused(text, reason):
    with pytest.raises(ParseError, match=reason):
        glm.parse(text)
