"""Actions as BrowserGym writes them."""

import pytest

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
)  # fmt: skip
from arpo.envs.gymnasium.browsergym_calls import browsergym_call

AT = Point(3.0, 4.5)


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (Click(point=AT), "mouse_click(3, 4.5)"),
        (DoubleClick(point=AT), "mouse_dblclick(3, 4.5)"),
        (TripleClick(point=AT), "mouse_dblclick(3, 4.5)"),
        (RightClick(point=AT), "mouse_click(3, 4.5, 'right')"),
        (MiddleClick(point=AT), ""),
        (Hover(point=AT), "mouse_move(3, 4.5)"),
        (LongPress(point=AT), "mouse_down(3, 4.5) noop(600) mouse_up(3, 4.5)"),
        (MouseDown(point=AT), "mouse_down(3, 4.5)"),
        (MouseUp(point=AT), "mouse_up(3, 4.5)"),
        (Drag(start=AT, end=Point(1279, 0)), "mouse_drag_and_drop(3, 4.5, 1279, 0)"),
        (Scroll(point=AT, direction=Direction.UP), "scroll_at(3, 4.5, 0, -265)"),
        (Scroll(point=None, direction=Direction.RIGHT, amount=2), "scroll_at(0, 0, 106, 0)"),
        (Hotkey(keys=("ctrl", "shift", "a")), "keyboard_press('Control+Shift+a')"),
        (Hotkey(keys=("pagedown",)), "keyboard_press('PageDown')"),
        (Hotkey(keys=("ctrl", "w")), "tab_close()"),
        (Hotkey(keys=("ctrl", "volumeup")), ""),
        (KeyDown(key="shift"), "keyboard_down('Shift')"),
        (KeyUp(key="left"), "keyboard_up('ArrowLeft')"),
        (Type(text='it\'s "a" #1', submit=True), "keyboard_type('it\\'s \"a\" #1\\n')"),
        (PressBack(), "go_back()"),
        (Wait(), "noop(1000)"),
        (Wait(seconds=0.5), "noop(500)"),
        (GiveAnswer(text="42"), "send_msg_to_user('42')"),
        (Finished(), "send_msg_to_user('')"),
        (Fail(), "report_infeasible('')"),
        (CallUser(), ""),
        (OpenApp(name="gimp"), ""),
        (PressHome(), ""),
    ],
)
def test_the_call_of_an_action(action, call):
    assert browsergym_call(action) == call
