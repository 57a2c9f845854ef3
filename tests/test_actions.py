"""Actions: their text (`render`) and their coordinates (`scale`)."""

from arpo.actions import (
    CallUser,
    Click,
    Direction,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Point,
    Scroll,
    Type,
    Wait,
    render,
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
