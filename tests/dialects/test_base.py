"""Actions that a program gives as data."""

import pytest

from arpo.actions import Click, Direction, Drag, Finished, Hotkey, KeyDown, KeyUp, Point, Scroll, Wait
from arpo.dialects.base import ParseError, checked_actions

SCREEN = (56, 40)


@pytest.mark.parametrize(
    ("given", "checked"),
    [
        (Hotkey(keys=("Control+A",)), Hotkey(keys=("ctrl", "a"))),
        (Hotkey(keys=("ctrl++",)), Hotkey(keys=("ctrl", "+"))),
        (Hotkey(keys=("Shift", "PageDown")), Hotkey(keys=("shift", "pagedown"))),
        (KeyDown(key="Return"), KeyDown(key="enter")),
        (KeyUp(key="Command"), KeyUp(key="win")),
    ],
)
def test_keys_become_canonical(given, checked):
    assert checked_actions([given], SCREEN) == (checked,)


def test_actions_within_the_limits_stay_as_they_are():
    up = Direction.UP
    actions = (
        Click(point=Point(55.5, 39)),
        Scroll(point=None, direction=up, amount=1000),
        Scroll(point=Point(0, 0), direction=up),
        Wait(seconds=30),
        Wait(),
        Finished(),
    )
    assert checked_actions(actions, SCREEN) == actions


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([], "contains no action"),
        ([Wait()] * 33, "more than 32"),
        ([Wait(seconds=300)], "waits for 300 seconds in all, at most 30"),
        ([Wait(seconds=-1)], "Wait: seconds is -1, must be 0 or more"),
        (
            [Scroll(point=None, direction=Direction.UP, amount=10**9)],
            "amount is 1000000000, must be 0 to 1000",
        ),
        ([Scroll(point=None, direction=Direction.UP, amount=-3)], "amount is -3, must be 0 to 1000"),
        ([Click(point=Point(56, 1))], r"the point \(56, 1\) is outside the screen of 56x40 pixels"),
        ([Drag(start=Point(1, 1), end=Point(1, -1))], r"the point \(1, -1\) is outside"),
        ([Hotkey(keys=("hyper",))], "Hotkey: unknown key 'hyper'"),
        ([Hotkey(keys=())], "Hotkey: has no key"),
        ([KeyDown(key="ctrl+a")], r"KeyDown: 'ctrl\+a' is more than one key"),
    ],
)
def test_actions_beyond_the_limits_are_refused(actions, message):
    with pytest.raises(ParseError, match=message):
        checked_actions(actions, SCREEN)
