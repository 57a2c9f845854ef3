"""Actions: their text (`render`) and their coordinates (`scale`)."""

from dataclasses import replace

import pytest

from arpo.actions import (
    POINTER,
    Action,
    CallUser,
    Click,
    Direction,
    Drag,
    Fail,
    Finished,
    GiveAnswer,
    Hotkey,
    Hover,
    MouseUp,
    Point,
    Scroll,
    Type,
    Wait,
    action_from_json,
    action_to_json,
    render,
    resolve_pointer,
    scale,
    up_to_terminal,
)


def test_render_writes_the_exact_text():
    click = Click(point=Point(105.0, 63.0))
    assert render([click], "T") == "Thought: T\nAction: click(start_box='(105,63)')"
    assert render([click]) == "Action: click(start_box='(105,63)')"


def test_calls_are_separated_by_a_blank_line():
    typed = Type(text="it's\tC:\\new", submit=True)
    assert render([typed, Wait()]) == "Action: type(content='it\\'s\\tC:\\\\new\\n')\n\nwait()"


def test_numbers_are_written_without_trailing_zeros():
    drag = Drag(start=Point(0.5, -3.0), end=Point(1000.0, 2.25))
    assert render([drag]) == "Action: drag(start_box='(0.5,-3)', end_box='(1000,2.25)')"


def test_keys_and_scrolls():
    assert render([Hotkey(keys=("ctrl", "+"))]) == "Action: hotkey(key='ctrl plus')"
    assert render([Scroll(point=None, direction=Direction.LEFT)]) == "Action: scroll(direction='left')"


def test_scale_converts_every_point():
    assert scale(Click(point=Point(966, 546)), (1932, 1092), (1920, 1080)) == Click(point=Point(960, 540))
    drag = Drag(start=Point(500, 500), end=Point(250, 1000))
    assert scale(drag, (1000, 1000), (1920, 1080)) == Drag(start=Point(960, 540), end=Point(480, 1079))
    scroll = Scroll(point=Point(10, 10), direction=Direction.UP)
    assert scale(scroll, (100, 100), (200, 300)) == Scroll(point=Point(20, 30), direction=Direction.UP)


def test_scale_leaves_actions_without_a_point():
    for action in (Scroll(point=None, direction=Direction.UP), Type(text="500"), Finished(content="done")):
        assert scale(action, (1000, 1000), (10, 10)) is action


def test_points_outside_the_screen_move_to_its_edge():
    assert scale(Click(point=Point(5000, -7)), (224, 168), (224, 168)) == Click(point=Point(223, 0))
    assert scale(Click(point=Point(224, 168)), (224, 168), (224, 168)) == Click(point=Point(223, 167))


def test_actions_after_a_terminal_one_are_dropped():
    click = Click(point=Point(1, 1))
    assert up_to_terminal([click, Fail(), click, Finished()]) == (click, Fail())
    assert up_to_terminal([CallUser(), click]) == (CallUser(),)
    assert up_to_terminal([click, click]) == (click, click)


def test_the_pointer_stays_where_the_last_action_left_it():
    start, there = Point(9, 9), Point(3, 4)
    drag = Drag(start=POINTER, end=Point(7, 8))
    answer: list[Action] = [Click(point=POINTER), Hover(point=there), drag, MouseUp(point=POINTER)]
    resolved, pointer = resolve_pointer(answer, start)
    assert resolved == (
        Click(point=start),
        Hover(point=there),
        Drag(start=there, end=Point(7, 8)),
        MouseUp(point=Point(7, 8)),
    )
    assert pointer == Point(7, 8)


def test_the_pointer_has_no_coordinates_to_scale():
    scaled = scale(Click(point=POINTER), (1000, 1000), (1920, 1080))
    assert resolve_pointer([scaled], Point(5, 6))[0] == (Click(point=Point(5, 6)),)


def test_amounts_are_stored_only_if_they_are_given():
    scroll = Scroll(point=None, direction=Direction.UP)
    assert action_to_json(scroll) == {"do": "Scroll", "point": None, "direction": "up"}
    assert action_to_json(replace(scroll, amount=3))["amount"] == 3
    assert action_to_json(Wait()) == {"do": "Wait"}
    for action in (scroll, replace(scroll, amount=3), Wait(), Wait(seconds=2.5), GiveAnswer(text="42")):
        assert action_from_json(action_to_json(action)) == action
    for wrong in ({"seconds": "3"}, {"seconds": float("inf")}, {"time": 1}):
        with pytest.raises(ValueError, match="action"):
            action_from_json({"do": "Wait", **wrong})
    with pytest.raises(ValueError, match=r"action\.amount: must be a whole number, not 1\.5"):
        action_from_json({**action_to_json(scroll), "amount": 1.5})
