import ast
import sys
from types import ModuleType

from hypothesis import given
from hypothesis import strategies as st

from arpo.actions import (
    CallUser,
    Click,
    Direction,
    Drag,
    Fail,
    Finished,
    GiveAnswer,
    Hotkey,
    KeyDown,
    LongPress,
    MiddleClick,
    MouseDown,
    MouseUp,
    OpenApp,
    Point,
    PressHome,
    Scroll,
    TripleClick,
    Type,
    Wait,
)
from arpo.envs.pyautogui_program import program

HEAD = "import time\nimport pyautogui"


def lines(*actions):
    return program(actions).removeprefix(HEAD).strip().splitlines()


def performed(*actions):
    """Run the program with a recording pyautogui and return its calls."""
    calls = []

    class Recorder(ModuleType):
        def __getattr__(self, function):
            return lambda *arguments: calls.append((function, *arguments))

    modules = {name: Recorder(name) for name in ("pyautogui", "pyperclip", "time")}
    kept = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        exec(compile(program(actions), "guest", "exec"), {})
    finally:
        for name, module in kept.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
    return calls


def test_places_are_whole_pixels():
    assert lines(Click(point=Point(105.4, 62.6))) == ["pyautogui.click(105, 63)"]
    assert performed(Drag(start=Point(1, 2), end=Point(3, 4))) == [("moveTo", 1, 2), ("dragTo", 3, 4, 1.0)]
    assert performed(LongPress(point=Point(1, 2))) == [
        ("moveTo", 1, 2),
        ("mouseDown",),
        ("sleep", 1.0),
        ("mouseUp",),
    ]


def test_scrolls_go_all_four_ways():
    here = Point(7, 8)
    assert performed(
        Scroll(point=here, direction=Direction.UP),
        Scroll(point=None, direction=Direction.DOWN),
        Scroll(point=here, direction=Direction.LEFT),
        Scroll(point=None, direction=Direction.RIGHT),
    ) == [("scroll", 5, 7, 8), ("scroll", -5), ("hscroll", -5, 7, 8), ("hscroll", 5)]


def test_keys():
    assert performed(Hotkey(keys=("ctrl", "left"))) == [("hotkey", "ctrl", "left")]
    assert performed(Hotkey(keys=("enter",)), KeyDown(key="shift")) == [
        ("hotkey", "enter"),
        ("keyDown", "shift"),
    ]


def test_typing_keeps_newlines_quotes_and_every_letter():
    assert performed(Type(text="one\nmoon", submit=True)) == [("write", "one\nmoon"), ("press", "enter")]
    assert performed(Type(text="'''\nimport os  # \\n")) == [("write", "'''\nimport os  # \\n")]
    assert performed(Type(text="naïve 你好")) == [("copy", "naïve 你好"), ("hotkey", "ctrl", "v")]


def test_terminal_and_telephone_actions_add_nothing():
    assert program([Finished(content="x"), Fail(), CallUser(), OpenApp(name="x"), PressHome()]) == HEAD
    assert performed(Wait()) == [("sleep", 1.0)]


def shape(code):
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            node.value, node.kind = None, None
    return ast.dump(tree)


def every_text(text, key):
    return [
        Type(text=text),
        Type(text=text, submit=True),
        Hotkey(keys=("ctrl", key)),
        KeyDown(key=key),
        OpenApp(name=text),
        Finished(content=text),
    ]


hostile = st.text() | st.sampled_from(
    ["'''", '"""', "\\", "\\'", "');import os;('", "\n\nimport os\n", "{}", "\x00", "\ud800"]
)


@given(hostile, hostile)
def test_no_text_changes_the_shape_of_the_program(text, key):
    assert shape(program(every_text(text, key))) == shape(program(every_text("a", "b")))


@given(hostile)
def test_typed_text_arrives_exactly(text):
    tree = ast.parse(program([Type(text=text)]))
    (assignment,) = (node for node in tree.body if isinstance(node, ast.Assign))
    assert ast.literal_eval(assignment.value) == text


def test_buttons_amounts_and_seconds():
    point = Point(1, 2)
    assert performed(MiddleClick(point=point), TripleClick(point=point)) == [
        ("middleClick", 1, 2),
        ("tripleClick", 1, 2),
    ]
    assert performed(MouseDown(point=point), MouseUp(point=Point(3, 4))) == [
        ("mouseDown", 1, 2),
        ("mouseUp", 3, 4),
    ]
    assert performed(Scroll(point=None, direction=Direction.DOWN, amount=7)) == [("scroll", -7)]
    assert performed(Scroll(point=point, direction=Direction.RIGHT, amount=2)) == [("hscroll", 2, 1, 2)]
    assert performed(Wait(seconds=2.5)) == [("sleep", 2.5)]
    assert performed(GiveAnswer(text="42")) == []
