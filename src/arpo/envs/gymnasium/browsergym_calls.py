"""Actions as calls of BrowserGym's HighLevelActionSet (coord, nav, tab, chat, infeas)."""

from __future__ import annotations

import arpo.actions as act
from arpo.actions import Action, Direction, Point
from arpo.envs.browser.keys import key

_NOTCHES, _NOTCH_PIXELS = 5, 53  # of a mouse wheel, as in the environment "browser"
_HOLD_MILLISECONDS, _WAIT_SECONDS = 600, 1.0
# Keys that a browser handles itself: a page does not see them.
_BROWSER_KEYS: dict[tuple[str, ...], str] = {
    ("alt", "left"): "go_back()",
    ("alt", "right"): "go_forward()",
    ("ctrl", "t"): "new_tab()",
    ("ctrl", "w"): "tab_close()",
}


def browsergym_call(action: Action) -> str:
    """The call as text; "" for an action unknown to BrowserGym.

    >>> browsergym_call(Click(point=Point(3, 4)))
    'mouse_click(3, 4)'
    """
    match action:
        case act.Click(point=point):
            return f"mouse_click({_at(point)})"
        case act.DoubleClick(point=point) | act.TripleClick(point=point):  # it has no triple click
            return f"mouse_dblclick({_at(point)})"
        case act.RightClick(point=point):
            return f"mouse_click({_at(point)}, 'right')"
        case act.Hover(point=point):
            return f"mouse_move({_at(point)})"
        case act.LongPress(point=point):
            return f"mouse_down({_at(point)}) noop({_HOLD_MILLISECONDS}) mouse_up({_at(point)})"
        case act.MouseDown(point=point):
            return f"mouse_down({_at(point)})"
        case act.MouseUp(point=point):
            return f"mouse_up({_at(point)})"
        case act.Drag(start=start, end=end):
            return f"mouse_drag_and_drop({_at(start)}, {_at(end)})"
        case act.Scroll(point=target, direction=direction, amount=amount):
            return _scroll(target or Point(0, 0), direction, _NOTCHES if amount is None else amount)
        case act.Hotkey(keys=keys):
            return _BROWSER_KEYS.get(keys) or _key_call("keyboard_press", *keys)
        case act.KeyDown(key=name):
            return _key_call("keyboard_down", name)
        case act.KeyUp(key=name):
            return _key_call("keyboard_up", name)
        case act.Type(text=text, submit=submit):
            return f"keyboard_type({text + submit * chr(10)!r})"
        case act.PressBack():
            return "go_back()"
        case act.Wait(seconds=seconds):
            return f"noop({1000 * (_WAIT_SECONDS if seconds is None else seconds):g})"
        case act.GiveAnswer(text=text) | act.Finished(content=text):
            return f"send_msg_to_user({text!r})"
        case act.Fail():
            return "report_infeasible('')"
        case _:  # also a middle click: BrowserGym hangs after a link opens a tab in the background
            return ""


def _at(point: Point) -> str:
    return f"{point.x:g}, {point.y:g}"


def _scroll(point: Point, direction: Direction, notches: int) -> str:
    distance = notches * _NOTCH_PIXELS * (1 if direction in (Direction.DOWN, Direction.RIGHT) else -1)
    vertical = direction in (Direction.UP, Direction.DOWN)
    return f"scroll_at({_at(point)}, {0 if vertical else distance}, {distance if vertical else 0})"


def _key_call(function: str, *names: str) -> str:
    found = [one.key for name in names if (one := key(name)) is not None]
    return f"{function}({'+'.join(found)!r})" if len(found) == len(names) else ""
