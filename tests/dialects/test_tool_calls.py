"""Tool calls in JSON and XML: Qwen-VL models and their descendants."""

import json

import pytest

from arpo.actions import (
    POINTER,
    CallUser,
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
    KeyUp,
    LongPress,
    MiddleClick,
    MouseDown,
    MouseUp,
    OpenApp,
    Point,
    PressBack,
    RightClick,
    Scroll,
    TripleClick,
    Type,
    Wait,
)
from arpo.dialects import qwen3_5
from arpo.dialects.base import ParseError
from arpo.dialects.tool_calls import parse

HERE = Point(10.0, 20.0)


def call(**arguments):
    content = json.dumps({"name": "computer_use", "arguments": arguments})
    return f"<tool_call>\n{content}\n</tool_call>"


def held(key):
    return KeyDown(key=key)


@pytest.mark.parametrize(
    ("arguments", "actions"),
    [
        ({"action": "left_click", "coordinate": [10, 20]}, [Click(point=HERE)]),
        ({"action": "click", "coordinate": [5, 10, 15, 30]}, [Click(point=HERE)]),
        ({"action": "left_click"}, [Click(point=POINTER)]),
        ({"action": "right_click", "coordinate": [10, 20]}, [RightClick(point=HERE)]),
        ({"action": "middle_click", "coordinate": [10, 20]}, [MiddleClick(point=HERE)]),
        ({"action": "double_click", "coordinate": [10, 20]}, [DoubleClick(point=HERE)]),
        ({"action": "triple_click", "coordinate": [10, 20]}, [TripleClick(point=HERE)]),
        ({"action": "left_mouse_down", "coordinate": [10, 20]}, [MouseDown(point=HERE)]),
        ({"action": "left_mouse_up"}, [MouseUp(point=POINTER)]),
        ({"action": "mouse_move", "coordinate": [10, 20]}, [Hover(point=HERE)]),
        ({"action": "long_press", "coordinate": [10, 20]}, [LongPress(point=HERE)]),
        ({"action": "left_click_drag", "coordinate": [10, 20]}, [Drag(start=POINTER, end=HERE)]),
        (
            {"action": "drag", "coordinate": [1, 2], "coordinate2": [10, 20]},
            [Drag(start=Point(1.0, 2.0), end=HERE)],
        ),
        (
            {"action": "drag", "start_coordinate": [1, 2], "end_coordinate": [10, 20]},
            [Drag(start=Point(1.0, 2.0), end=HERE)],
        ),
        ({"action": "scroll", "pixels": -5}, [Scroll(point=None, direction=Direction.DOWN, amount=5)]),
        (
            {"action": "hscroll", "pixels": 3, "coordinate": [10, 20]},
            [Scroll(point=HERE, direction=Direction.RIGHT, amount=3)],
        ),
        ({"action": "swipe", "direction": "up"}, [Scroll(point=None, direction=Direction.DOWN)]),
        ({"action": "key", "keys": ["ctrl", "shift", "T"]}, [Hotkey(keys=("ctrl", "shift", "t"))]),
        ({"action": "key", "keys": ["ctrl+c"]}, [Hotkey(keys=("ctrl", "c"))]),
        ({"action": "key", "keys": ["keys=['ctrl'", "'c']"]}, [Hotkey(keys=("ctrl", "c"))]),
        ({"action": "key", "keys": "Return"}, [Hotkey(keys=("enter",))]),
        ({"action": "key_down", "keys": ["shift"]}, [KeyDown(key="shift")]),
        ({"action": "key_up", "keys": ["shift"]}, [KeyUp(key="shift")]),
        ({"action": "type", "text": "it's\n"}, [Type(text="it's", submit=True)]),
        (
            {"action": "type", "text": "a", "clear": 1, "enter": 1},
            [Hotkey(keys=("ctrl", "a")), Hotkey(keys=("backspace",)), Type(text="a", submit=True)],
        ),
        (
            {"action": "left_click", "coordinate": [10, 20], "text": "ctrl+shift"},
            [
                KeyDown(key="ctrl"),
                KeyDown(key="shift"),
                Click(point=HERE),
                KeyUp(key="shift"),
                KeyUp(key="ctrl"),
            ],
        ),
        ({"action": "wait", "time": 3}, [Wait(seconds=3.0)]),
        ({"action": "wait", "time": 300}, [Wait(seconds=20.0)]),
        ({"action": "wait"}, [Wait()]),
        ({"action": "open", "text": "Mail"}, [OpenApp(name="Mail")]),
        ({"action": "system_button", "button": "Back"}, [PressBack()]),
        ({"action": "answer", "text": "42"}, [GiveAnswer(text="42")]),
        ({"action": "terminate", "status": "success"}, [Finished()]),
        ({"action": "terminate", "status": "failure"}, [Fail()]),
        ({"action": "ask_user", "text": "which?"}, [CallUser()]),
    ],
)
def test_arguments_become_actions(arguments, actions):
    # repr: POINTER is not equal to itself
    assert repr(parse(call(**arguments)).actions) == repr(tuple(actions))


@pytest.mark.parametrize(
    "before",
    ["", "Action: open it\n", "<think>\nI open it.\n</think>\n\n", "<thinking>it</thinking>\nAction: open\n"],
)
@pytest.mark.parametrize("after", ["", "\n<conclusion>opened</conclusion>", "\n\n"])
def test_text_around_a_call_is_allowed(before, after):
    assert parse(before + call(action="wait") + after).actions == (Wait(),)


def test_a_call_inside_a_thought_does_not_count():
    thought = f"<think>I could {call(action='terminate')}</think>"
    assert parse(thought + call(action="wait")).actions == (Wait(),)
    with pytest.raises(ParseError, match="contains no <tool_call>"):
        parse(thought)
    with pytest.raises(ParseError, match="the thought in <think> is not closed"):
        parse("<think>" + call(action="wait"))


def test_several_calls_a_missing_end_and_calls_without_tags():
    assert parse(call(action="wait") * 2).actions == (Wait(), Wait())
    assert parse(call(action="wait").removesuffix("</tool_call>")).actions == (Wait(),)
    bare = json.dumps({"name": "computer_use", "arguments": {"action": "wait"}})
    assert parse(f"Action: wait\n{bare}").actions == (Wait(),)
    assert parse(call(action="wait").replace('{"action": "wait"}', r'"{\"action\": \"wait\"}"')).actions == (
        Wait(),
    )


def test_the_thought_is_the_text_before_the_call():
    assert parse("<think>\nOpen it.\n</think>\n" + call(action="wait")).thought == "Open it."


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("click there", "the answer contains no <tool_call>"),
        ("<tool_call>{</tool_call>", r"the call is not JSON \(Expecting property name.*\): '{'"),
        ("<tool_call>[1]</tool_call>", r"must be a JSON object, got '\[1\]'"),
        ("<tool_call>{}</tool_call>", "unknown tool None"),
        ('<tool_call>{"name": "shell", "arguments": {}}</tool_call>', "unknown tool 'shell'"),
        ('<tool_call>{"name": "computer_use"}</tool_call>', "must be an object, got None"),
        (f"<tool_call>{'[' * 10**5}</tool_call>", "nested more than 20 times"),
        (f"<tool_call>{'1' * 10**5}</tool_call>", "a number is too long"),
        (call(action="jump"), "unknown action 'jump'"),
        (call(action=["wait"]), r"unknown action \['wait'\]"),
        (call(action="left_click", coordinate=[1]), r"coordinate must be \[x, y\], got \[1\]"),
        (call(action="left_click", coordinate=[1, True]), r"coordinate must be \[x, y\]"),
        (call(action="left_click", coordinate=[1, 1e9]), r"coordinate must be \[x, y\]"),
        (call(action="left_click", coordinate=[1, float("nan")]), r"coordinate must be \[x, y\]"),
        (call(action="mouse_move"), "mouse_move needs coordinate"),
        (call(action="scroll"), "scroll needs pixels"),
        (call(action="scroll", pixels="down"), "pixels must be a number, got 'down'"),
        (call(action="scroll", pixels=float("inf")), "pixels must be a number, got inf"),
        (call(action="key", keys=[]), r"key needs keys, a list of texts, got \[\]"),
        (call(action="key", keys=["hyper"]), "unknown key 'hyper'"),
        (call(action="type", text=3), "type needs text, a text, got 3"),
        (call(action="terminate", status="maybe"), "status must be success or failure, got 'maybe'"),
        (call(action="wait") * 33, "more than 32 calls"),
        (call(action="wait", time=20) * 2, "waits for 40 seconds in all"),
    ],
)
def test_other_answers_are_refused(answer, reason):
    with pytest.raises(ParseError, match=reason):
        parse(answer)


XML = """<tool_call>
<function=computer_use>
<parameter=action>
left_click
</parameter>
<parameter=coordinate>
[10, 20]
</parameter>
</function>
</tool_call>"""


def test_calls_in_xml():
    assert qwen3_5.parse("<think>\nOpen it.\n</think>\n\n" + XML).actions == (Click(point=HERE),)
    assert qwen3_5.parse(XML.replace("\n", "")).actions == (Click(point=HERE),)
    assert qwen3_5.parse(XML.replace("=action", "=type")).actions == (Click(point=HERE),)
    assert qwen3_5.parse(call(action="wait")).actions == (Wait(),)
    typed = XML.replace("left_click", "type").replace("=coordinate", "=text").replace("[10, 20]", "42")
    assert qwen3_5.parse(typed).actions == (Type(text="42"),)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (XML.replace("<function=computer_use>", ""), "expected <function=NAME>, got '<parameter=action>"),
        (XML.replace("</parameter>", ""), "<parameter=action> is not closed"),
        (XML.replace("</function>", "and more"), "expected <parameter=NAME> or </function>, got 'and more'"),
        (XML.replace("[10, 20]", "here"), r"coordinate must be \[x, y\], got 'here'"),
        (XML.replace("[10, 20]", "[" * 10**5), r"coordinate must be \[x, y\]"),
        ("left_click", "contains no <tool_call>"),
    ],
)
def test_other_answers_in_xml_are_refused(answer, reason):
    with pytest.raises(ParseError, match=reason):
        qwen3_5.parse(answer)
