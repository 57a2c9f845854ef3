"""Texts of actions and answers."""

from arpo import actions as act
from arpo.viewer.steps import action_label, split_answer
from stored_episodes import ALL_ACTIONS

DRAWN = (
    act.Click, act.DoubleClick, act.RightClick, act.MiddleClick, act.TripleClick, act.Hover, act.LongPress,
    act.Drag,
)  # fmt: skip


def test_every_action_that_is_not_drawn_has_a_label():
    assert all(action_label(action) for action in ALL_ACTIONS if not isinstance(action, DRAWN))
    assert not any(action_label(action) for action in ALL_ACTIONS if isinstance(action, DRAWN))
    assert action_label(act.Type(text="hi", submit=True)) == "type “hi” ⏎"


def test_an_answer_has_a_thought_and_actions():
    assert split_answer("Thought: Open it\nAction: wait()") == ("Open it", "wait()")
    assert split_answer("nothing") == ("nothing", "")
