"""Parsing: every accepted spelling, every refusal with its reason, and a round trip through `render`."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.actions import (
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
    PressHome,
    RightClick,
    Scroll,
    TripleClick,
    Type,
    Wait,
    render,
)
from arpo.dialects import ui_tars
from arpo.dialects.base import Answer, ParseError
from arpo.dialects.ui_tars import parse
from arpo.keyboard import canonical_keys

HERE = Point(10.0, 20.0)
POINTED = (
    Click, DoubleClick, RightClick, MiddleClick, TripleClick, Hover, LongPress, MouseDown, MouseUp
)  # fmt: skip


def only(call):
    (action,) = parse(f"Thought: go\nAction: {call}").actions
    return action


@pytest.mark.parametrize(
    "box",
    [
        "start_box='<|box_start|>(10,20)<|box_end|>'",
        "start_box='(10,20)'",
        "start_box='( 10 , 20 )'",
        "start_box = '(10, 20)'",
        'start_box="(10,20)"',
        "start_box='(5,10,15,30)'",
        "start_box='<|box_start|>(5, 10, 15, 30)<|box_end|>'",
        "start_box='[10, 20]'",
        "start_box='10 20'",
        "start_box=(10,20)",
        "point='<point>10 20</point>'",
        "point='<point> 10, 20 </point>'",
        "start_point='<point>10 20</point>'",
        "start_box='(10.0,2e1)'",
    ],
)
def test_every_form_of_a_point(box):
    assert only(f"click({box})") == Click(point=HERE)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        ("left_double(start_box='(10,20)')", DoubleClick(point=HERE)),
        ("right_single(point='<point>10 20</point>')", RightClick(point=HERE)),
        ("hover(start_box='(10,20)')", Hover(point=HERE)),
        ("long_press(point='<point>10 20</point>')", LongPress(point=HERE)),
        ("drag(start_box='(10,20)', end_box='(30,40)')", Drag(start=HERE, end=Point(30.0, 40.0))),
        (
            "select(start_point='<point>10 20</point>', end_point='<point>30 40</point>')",
            Drag(start=HERE, end=Point(30.0, 40.0)),
        ),
        ("hotkey(key='ctrl c')", Hotkey(keys=("ctrl", "c"))),
        ("press(key='return')", Hotkey(keys=("enter",))),
        ("keydown(key='Shift')", KeyDown(key="shift")),
        ("keyup(key='shift')", KeyUp(key="shift")),
        ("type(content='hello')", Type(text="hello")),
        ("type(content='hello\\n')", Type(text="hello", submit=True)),
        ("type(content='one\\ntwo\\n')", Type(text="one\ntwo", submit=True)),
        ("type(content='one\\nmoon')", Type(text="one\nmoon")),
        ("type(content='你好，世界')", Type(text="你好，世界")),
        ("type(content='')", Type(text="")),
        ("type(content='it\\'s \\\"so\\\"')", Type(text='it\'s "so"')),
        ("type(content='it's 'so', really')", Type(text="it's 'so', really")),
        ("type(content='print('a')\nprint('b')')", Type(text="print('a')\nprint('b')")),
        ('type(content="it\'s")', Type(text="it's")),
        ("type(content='a ) b', )", Type(text="a ) b")),
        ("type(content='x = ('a',)')", Type(text="x = ('a',)")),
        ("type(content='x\\dy')", Type(text="x\\dy")),
        ("type(content='Action: wait()')", Type(text="Action: wait()")),
        ("scroll(direction='down')", Scroll(point=None, direction=Direction.DOWN)),
        ("scroll(start_box='(10,20)', direction='left')", Scroll(point=HERE, direction=Direction.LEFT)),
        ("scroll(direction='Up', point='<point>10 20</point>')", Scroll(point=HERE, direction=Direction.UP)),
        ("open_app(app_name='Notes')", OpenApp(name="Notes")),
        ("press_home()", PressHome()),
        ("press_back()", PressBack()),
        ("wait()", Wait()),
        ("wait( )", Wait()),
        ("finished()", Finished()),
        ("finished(content='the answer is 4')", Finished(content="the answer is 4")),
        ("error_env()", Fail()),
        ("call_user()", CallUser()),
    ],
)
def test_every_call(call, action):
    assert only(call) == action


def test_forms_of_thoughts():
    click = (Click(point=HERE),)
    call = "click(start_box='(10,20)')"
    assert parse(f"Thought: 点击 OK\nAction: {call}") == Answer(thought="点击 OK", actions=click)
    assert parse(f"Thought: two\nlines\nAction: {call}\n").thought == "two\nlines"
    assert parse(f"Thought: Action: soon\nAction: {call}").thought == "Action: soon"
    assert parse(f"Thought: all in one line. Action: {call}").thought == "all in one line."
    assert parse(f"Action: {call}") == Answer(thought="", actions=click)
    reflected = parse(f"Reflection: it failed\nAction_Summary: try again\nAction: {call}")
    assert reflected == Answer(thought="Reflection: it failed\nAction_Summary: try again", actions=click)
    assert parse(f"Thought：好\nAction：{call}") == Answer(thought="好", actions=click)


def test_several_calls():
    answer = parse("Action: click(start_box='(10,20)')\n\ntype(content='it's')\n\nhotkey(key='enter')\n")
    assert answer.actions == (Click(point=HERE), Type(text="it's"), Hotkey(keys=("enter",)))


@pytest.mark.parametrize("end", [",)", ", )", " , )", ",\n)"])
def test_a_trailing_comma_does_not_swallow_the_next_call(end):
    click = "click(start_box='(10,20)'"
    written = parse(f"Action: type(content='a'{end}\n\n{click}{end}\n\n{click})")
    assert written.actions == (Type(text="a"), Click(point=HERE), Click(point=HERE))
    with pytest.raises(ParseError, match="expected a call, got 'Thought: b'"):
        parse(f"Action: type(content='a'{end}\nThought: b")


def test_a_coordinate_beyond_the_screen_is_accepted_and_one_beyond_any_screen_is_not():
    """`scale` moves a point outside the screen to its edge: real models miss the edge by a little."""
    assert only("click(start_box='(-3,2000)')") == Click(point=Point(-3.0, 2000.0))
    assert only("click(start_box='(1e5,-1e5)')") == Click(point=Point(1e5, -1e5))
    for box in ("(1e308,20)", "(10,-1e308)", "(100001,20)", "(10,20,1e6,30)", "(-1e300,20,1e300,20)"):
        with pytest.raises(ParseError, match="no screen has the coordinate"):
            only(f"click(start_box='{box}')")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no 'Action:'"),
        ("click(start_box='(1,2)')", "no 'Action:'"),
        ("Action_Summary: click(start_box='(1,2)')", "no 'Action:'"),
        ("Thought: hm\nAction: ", "no call follows"),
        ("Action: I will click", "expected a call"),
        ("Action: explode()", "unknown function 'explode'"),
        ("Action: click()", "click\\(\\) needs start_box="),
        ("Action: drag(start_box='(1,2)')", "drag\\(\\) needs end_box="),
        ("Action: type()", "type\\(\\) needs content="),
        ("Action: scroll(start_box='(1,2)')", "scroll\\(\\) needs direction="),
        ("Action: scroll(direction='sideways')", "got 'sideways'"),
        ("Action: click(start_box='(1,2)', force='9')", "has no argument force="),
        ("Action: click(start_box='(1,2)', start_box='(1,2)')", "twice"),
        ("Action: click(start_box='(1,2)', point='(1,2)')", "has no argument point="),
        ("Action: click(start_box='here')", "expected \\(x,y\\)"),
        ("Action: click(start_box='(1,2,3)')", "expected \\(x,y\\)"),
        ("Action: click(start_box='(1,__import__)')", "expected \\(x,y\\)"),
        ("Action: click(start_box='(1e999,2)')", "no screen has the coordinate 1e999"),
        ("Action: click(start_box='(inf,2)')", "expected \\(x,y\\)"),
        ("Action: click(start_box='(nan,2)')", "expected \\(x,y\\)"),
        ("Action: click(start_box='(1,2)", "quote is not closed"),
        ("Action: click(start_box='(1,2)'", "quote is not closed"),
        ("Action: click(start_box=now)", "needs a quoted value"),
        ("Action: click('(1,2)')", "expected an argument"),
        ("Action: wait(", "expected an argument"),
        ("Action: click(start_box='(1,2)') and wait", "unexpected text after the call: 'and wait'"),
        ("Action: wait() wait()", "unexpected text after the call"),
        ("Action: wait()\nThought: again\nAction: wait()", "expected a call, got 'Thought"),
        ("Action: type(content='a')\nThought: b\nAction: type(content='c')", "expected a call, got .Thought"),
        ("Action: wait()\n\nAction: wait()", "expected a call, got 'Action"),
        ("Action: hotkey(key='ctrl bogus')", "unknown key 'bogus'"),
        ("Action: keydown(key='ctrl c')", "one key"),
        ("Thought: <|image_pad|>\nAction: wait()", "special token <\\|image_pad\\|>"),
        ("Action: type(content='<|vision_start|>')", "special token"),
    ],
)
def test_a_parse_error_names_its_reason(text, reason):
    with pytest.raises(ParseError, match=reason):
        parse(text)


FRAGMENTS = st.sampled_from(
    [
        "Thought: ", "\nAction: ", "click(", "type(", "hotkey(", "scroll(", "start_box=", "content=", "key=",
        "direction=", "'", '"', "\\", "(1,2)", "(1e999,0)", "(1e308,0,1e308,0)", ")", ",", ",)", "\n\n", " ",
        "<point>", "</point>", "down", "ctrl+", "Ⅷ٣", "wait()",
    ]
)  # fmt: skip


@given(st.lists(FRAGMENTS | st.text(max_size=5), max_size=20).map("".join) | st.text())
def test_every_string_parses_or_raises_parse_error(text):
    try:
        answer = parse(text)
    except ParseError as error:
        assert 0 < len(str(error)) < 300
    else:
        assert answer.actions


class Counting:
    """A pattern that counts the characters from the start of a search to its match or to the end."""

    scanned = 0

    def __init__(self, pattern):
        self.pattern = pattern

    def search(self, text):
        found = self.pattern.search(text)
        Counting.scanned += found.end() if found else len(text)
        return found

    def match(self, text, position):
        found = self.pattern.match(text, position)
        Counting.scanned += found.end() - position if found else 0  # the parser gives up
        return found

    def finditer(self, text, position):
        for found in self.pattern.finditer(text, position):
            Counting.scanned += found.end() - position
            position = found.end()
            yield found
        Counting.scanned += len(text) - position

    def fullmatch(self, text):
        Counting.scanned += len(text)
        return self.pattern.fullmatch(text)

    def sub(self, replacement, text, count=0):
        Counting.scanned += len(text)
        return self.pattern.sub(replacement, text, count=count)


REPEATED = (
    "type(content='a',)\n", "type(content='a', )\n\n", "click(start_box='(1,2)',)\n", "wait()\n",
        "type(content='a')\n", "type(content='\\'')\n", "type(content='a');\n", "type(content='a', )x\n",
        "type(content='", "'", '"', "',", "')", "',)", "') ", "')\nclick", "', a", "\\", "\\n", "(", ")", ",",
        "\n", "Action:", "Action:\n", "Action \n", "Thought:", "<|box_start|>", "1", "a ", "+", "x='1', ",
)  # fmt: skip


@pytest.mark.parametrize("start", ["", "Action: ", "Action: type(content='", "Action: click(start_box='(1,"])
@pytest.mark.parametrize("end", ["", "')"])
def test_the_work_is_linear_in_the_length(monkeypatch, start, end):
    monkeypatch.setattr(ui_tars, "MAX_CALLS", 10**6)
    for name, value in vars(ui_tars).items():
        if isinstance(value, re.Pattern):
            monkeypatch.setattr(ui_tars, name, Counting(value))
        elif isinstance(value, dict):
            for key, pattern in value.items():
                if isinstance(pattern, re.Pattern):
                    monkeypatch.setitem(value, key, Counting(pattern))
    for repeated in REPEATED:
        text = start + repeated * (4000 // len(repeated)) + end
        Counting.scanned = 0
        try:
            parse(text)
        except ParseError as error:
            assert len(str(error)) < 300
        assert Counting.scanned <= 8 * len(text), repeated


def is_plain(text):
    return "<|" not in text


def test_an_answer_has_at_most_32_calls():
    assert parse("Action: " + "\n".join(["wait()"] * 32)).actions == (Wait(),) * 32
    with pytest.raises(ParseError, match="more than 32 calls"):
        parse("Action: " + "\n".join(["wait()"] * 33))


texts = st.text().filter(is_plain)
numbers = st.integers(-9999, 9999).map(float) | st.floats(-1e5, 1e5)
points = st.builds(Point, numbers, numbers)
names = st.sampled_from(
    ["ctrl", "shift", "enter", "pagedown", "left", "f5", "+", "-", "_", "'", "\\", "a", "é", ","]
)
typed = st.builds(Type, text=texts, submit=st.booleans()).filter(
    lambda t: t.submit or not t.text.endswith("\n")
)
actions = st.one_of(
    *(st.builds(kind, point=points) for kind in POINTED),
    st.builds(Drag, start=points, end=points),
    st.builds(Scroll, point=points | st.none(), direction=st.sampled_from(Direction)),
    st.builds(Hotkey, keys=st.lists(names, min_size=1, max_size=4).map(tuple)),
    st.builds(KeyDown, key=names),
    st.builds(KeyUp, key=names),
    typed,
    st.builds(OpenApp, name=texts),
    st.builds(Finished, content=texts),
    st.sampled_from([PressHome(), PressBack(), Wait(), Fail(), CallUser()]),
)
thoughts = texts.map(str.strip).filter(lambda t: "\n" not in t and "\r" not in t)


@given(st.lists(actions, min_size=1, max_size=4), thoughts)
def test_rendered_actions_parse_back(written, thought):
    assert parse(render(written, thought)) == Answer(thought=thought, actions=tuple(written))


@given(st.lists(actions, min_size=1, max_size=4), st.sampled_from([",)", ", )", " ,\n)"]))
def test_rendered_actions_with_trailing_commas_parse_back(written, end):
    calls = [render([action]).removeprefix("Action: ") for action in written]
    listed = [call if call.endswith("()") else call.removesuffix(")") + end for call in calls]
    assert parse("Action: " + "\n".join(listed)).actions == tuple(written)


@given(names)
def test_canonical_names_are_their_own_spelling(name):
    assert canonical_keys(name) == (name,)


def test_amounts_waits_and_answers():
    assert only("scroll(direction='up', amount='3')").amount == 3
    assert only("scroll(direction='up', amount='1e5')").amount == 1000
    assert only("wait(seconds='2.5')") == Wait(seconds=2.5)
    assert only("wait(seconds='99')") == Wait(seconds=20.0)
    assert only("answer(content='42')") == GiveAnswer(text="42")
    with pytest.raises(ParseError, match="amount= must be a number, got 'many'"):
        only("scroll(direction='up', amount='many')")
    with pytest.raises(ParseError, match="waits for 40 seconds in all, at most 30"):
        parse("Action: wait(seconds='20')\n\nwait(seconds='20')")
