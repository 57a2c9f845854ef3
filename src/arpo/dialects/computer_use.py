"""Arguments of a tool call such as computer_use or mobile_use, converted to actions, and the reverse.

    {"action": "left_click", "coordinate": [105, 63]}  ↔  Click(point=Point(x=105.0, y=63.0))

Qwen-VL models and their descendants share these arguments; they differ in how they write a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import arpo.actions as act
from arpo.actions import POINTER, Action, Direction, Point
from arpo.dialects.base import ParseError, clipped, is_coordinate, quoted, scroll_amount, wait_seconds
from arpo.keyboard import canonical_keys

TOOLS = ("computer_use", "computer", "mobile_use")
_SUCCESS, _FAILURE = ("success", "succeed", "done"), ("failure", "fail", "failed")


def to_actions(tool: Any, arguments: Any) -> list[Action]:
    """The actions of one call. Raises ParseError for an unknown tool, action or value."""
    if tool not in TOOLS:
        raise ParseError(f"unknown tool {_shown(tool)}")
    if not isinstance(arguments, Mapping):
        raise ParseError(f"the arguments of {tool} must be an object, got {_shown(arguments)}")
    name = arguments.get("action")
    if not isinstance(name, str) or name not in _BUILDERS:
        raise ParseError(f"unknown action {_shown(name)}")
    actions = _BUILDERS[name](_Arguments(name, arguments))
    return [actions] if not isinstance(actions, list) else actions


class _Arguments:
    def __init__(self, action: str, values: Mapping[str, Any]) -> None:
        self.action = action
        self._values = values

    def get(self, *names: str) -> Any:
        """The first of these arguments that is given; null counts as missing."""
        return next((self._values[name] for name in names if self._values.get(name) is not None), None)

    def text(self, *names: str) -> str:
        value = self.get(*names)
        if not isinstance(value, str):
            raise ParseError(f"{self.action} needs {names[0]}, a text, got {_shown(value)}")
        return value

    def number(self, *names: str) -> float | None:
        value = self.get(*names)
        if value is None:
            return None
        try:
            found = float(value) if isinstance(value, int | float | str) else math.nan
        except (ValueError, OverflowError):
            found = math.nan
        if not math.isfinite(found) or isinstance(value, bool):
            raise ParseError(f"{self.action}: {names[0]} must be a number, got {_shown(value)}")
        return found

    def flag(self, name: str) -> bool:
        return self.get(name) in (1, "1", "true", "True")

    def point(self, *names: str) -> Point:
        """A position; the one of the pointer if it is not given."""
        value = self.get(*names)
        return POINTER if value is None else _point(self.action, names[0], value)

    def given_point(self, *names: str) -> Point:
        value = self.get(*names)
        if value is None:
            raise ParseError(f"{self.action} needs {names[0]}")
        return _point(self.action, names[0], value)

    def keys(self, value: Any) -> tuple[str, ...]:
        """Canonical keys of a list or a text. Models also write ["keys=['ctrl'", "'c']"]."""
        parts = value if isinstance(value, list) else [value]
        if not parts or not all(isinstance(part, str) for part in parts):
            raise ParseError(f"{self.action} needs keys, a list of texts, got {_shown(value)}")
        try:
            return tuple(key for part in parts for key in canonical_keys(_bare_key(part)))
        except ValueError as error:
            raise ParseError(f"{self.action}: {error}") from None


def _bare_key(text: str) -> str:
    bare = text.removeprefix("keys=").strip()
    return bare.strip("[]'\"") or text if len(bare) > 1 else text


def _point(action: str, name: str, value: Any) -> Point:
    numbers = list(value) if isinstance(value, list | tuple) else []
    if len(numbers) == 4:  # a box: its centre counts
        numbers = [_sum(numbers[0], numbers[2]), _sum(numbers[1], numbers[3])]
    if len(numbers) != 2 or not all(is_coordinate(number) for number in numbers):
        raise ParseError(f"{action}: {name} must be [x, y], got {_shown(value)}")
    return Point(float(numbers[0]), float(numbers[1]))


def _sum(one: Any, other: Any) -> Any:
    return (one + other) / 2 if is_coordinate(one) and is_coordinate(other) else None


def _shown(value: Any) -> str:
    return quoted(value) if isinstance(value, str) else clipped(repr(value))


def _pointed(kind: Callable[..., Action]) -> Callable[[_Arguments], list[Action]]:
    """A click. `text` names modifier keys that are held during it (Qwen3.5)."""

    def build(args: _Arguments) -> list[Action]:
        click = kind(point=args.point("coordinate"))
        held = args.get("text")
        keys = args.keys(held) if held else ()
        return [
            *(act.KeyDown(key=key) for key in keys),
            click,
            *(act.KeyUp(key=key) for key in reversed(keys)),
        ]

    return build


def _drag(args: _Arguments) -> Action:
    end = args.get("coordinate2", "end_coordinate")
    if end is None:
        return act.Drag(start=args.point("start_coordinate"), end=args.given_point("coordinate"))
    start = args.given_point("coordinate", "start_coordinate", "coordinate1")
    return act.Drag(start=start, end=_point(args.action, "coordinate2", end))


def _swipe(args: _Arguments) -> Action:
    """A finger that moves up shows what is below: it scrolls down."""
    if args.get("direction") is None:
        return _drag(args)
    opposite = {"up": Direction.DOWN, "down": Direction.UP, "left": Direction.RIGHT, "right": Direction.LEFT}
    direction = args.text("direction").strip().lower()
    if direction not in opposite:
        raise ParseError(f"swipe: direction must be one of {', '.join(opposite)}, got {quoted(direction)}")
    point = args.get("coordinate")
    return act.Scroll(
        point=None if point is None else _point("swipe", "coordinate", point), direction=opposite[direction]
    )


def _scroll(args: _Arguments) -> Action:
    pixels = args.number("pixels", "amount")
    if pixels is None:
        raise ParseError(f"{args.action} needs pixels")
    ways = (Direction.RIGHT, Direction.LEFT) if args.action == "hscroll" else (Direction.UP, Direction.DOWN)
    point = args.get("coordinate")
    return act.Scroll(
        point=None if point is None else _point(args.action, "coordinate", point),
        direction=ways[pixels < 0],
        amount=scroll_amount(pixels),
    )


def _type(args: _Arguments) -> list[Action]:
    text = args.text("text")
    cleared: list[Action] = [act.Hotkey(keys=("ctrl", "a")), act.Hotkey(keys=("backspace",))]
    submit = text.endswith("\n") or args.flag("enter")
    typed = act.Type(text=text.removesuffix("\n"), submit=submit)
    return [*(cleared if args.flag("clear") else ()), typed]


def _wait(args: _Arguments) -> Action:
    seconds = args.number("time", "duration")
    return act.Wait(seconds=None if seconds is None else wait_seconds(seconds))


def _terminate(args: _Arguments) -> Action:
    status = args.get("status")
    if status is None or status in _SUCCESS:
        return act.Finished()
    if status in _FAILURE:
        return act.Fail()
    raise ParseError(f"terminate: status must be success or failure, got {_shown(status)}")


def _system_button(args: _Arguments) -> Action:
    button = args.text("button").strip().lower()
    buttons: dict[str, Action] = {
        "back": act.PressBack(),
        "home": act.PressHome(),
        "menu": act.Hotkey(keys=("menu",)),
        "enter": act.Hotkey(keys=("enter",)),
    }
    if button not in buttons:
        raise ParseError(f"system_button: unknown button {quoted(button)}")
    return buttons[button]


def _key(args: _Arguments) -> Action:
    return act.Hotkey(keys=args.keys(args.get("keys", "key", "text")))


def _each_key(kind: Callable[..., Action]) -> Callable[[_Arguments], list[Action]]:
    return lambda args: [kind(key=key) for key in args.keys(args.get("keys", "key", "text"))]


_BUILDERS: dict[str, Callable[[_Arguments], Action | list[Action]]] = {
    "left_click": _pointed(act.Click),
    "click": _pointed(act.Click),
    "right_click": _pointed(act.RightClick),
    "middle_click": _pointed(act.MiddleClick),
    "double_click": _pointed(act.DoubleClick),
    "triple_click": _pointed(act.TripleClick),
    "left_mouse_down": _pointed(act.MouseDown),
    "left_mouse_up": _pointed(act.MouseUp),
    "long_press": lambda args: act.LongPress(point=args.given_point("coordinate")),
    "mouse_move": lambda args: act.Hover(point=args.given_point("coordinate")),
    "left_click_drag": _drag,
    "drag": _drag,
    "swipe": _swipe,
    "scroll": _scroll,
    "hscroll": _scroll,
    "key": _key,
    "key_down": _each_key(act.KeyDown),
    "key_up": _each_key(act.KeyUp),
    "type": _type,
    "open": lambda args: act.OpenApp(name=args.text("text")),
    "system_button": _system_button,
    "wait": _wait,
    "answer": lambda args: act.GiveAnswer(text=args.text("text")),
    "terminate": _terminate,
    "call_user": lambda args: act.CallUser(),
    "interact": lambda args: act.CallUser(),
    "ask_user": lambda args: act.CallUser(),
}

_POINTED: Mapping[type[Action], str] = {
    act.Click: "left_click", act.RightClick: "right_click", act.MiddleClick: "middle_click",
    act.DoubleClick: "double_click", act.TripleClick: "triple_click", act.MouseDown: "left_mouse_down",
    act.MouseUp: "left_mouse_up", act.LongPress: "long_press", act.Hover: "mouse_move",
}  # fmt: skip
_NOTCHES = 5  # of a scroll without an amount


def from_action(action: Action) -> dict[str, Any]:
    """The arguments of the call for an action."""
    match action:
        case (
            act.Click() | act.RightClick() | act.MiddleClick() | act.DoubleClick() | act.TripleClick()
            | act.MouseDown() | act.MouseUp() | act.LongPress() | act.Hover()
        ):  # fmt: skip
            return {"action": _POINTED[type(action)], "coordinate": _pixels(action.point)}
        case act.Drag(start=start, end=end):
            places = {"start_coordinate": _pixels(start), "coordinate": _pixels(end)}
            return {"action": "left_click_drag", **places}
        case act.Scroll(point=place, direction=direction, amount=amount):
            sideways = direction in (Direction.LEFT, Direction.RIGHT)
            sign = 1 if direction in (Direction.UP, Direction.RIGHT) else -1
            where = {} if place is None else {"coordinate": _pixels(place)}
            notches = sign * (_NOTCHES if amount is None else amount)
            return {"action": "hscroll" if sideways else "scroll", **where, "pixels": notches}
        case act.Hotkey(keys=keys):
            return {"action": "key", "keys": list(keys)}
        case act.KeyDown(key=key):
            return {"action": "key_down", "keys": [key]}
        case act.KeyUp(key=key):
            return {"action": "key_up", "keys": [key]}
        case act.Type(text=text, submit=submit):
            return {"action": "type", "text": text + submit * "\n"}
        case act.OpenApp(name=name):
            return {"action": "open", "text": name}
        case act.PressHome() | act.PressBack():
            return {
                "action": "system_button",
                "button": "Home" if isinstance(action, act.PressHome) else "Back",
            }
        case act.Wait(seconds=seconds):
            return {"action": "wait"} | ({} if seconds is None else {"time": seconds})
        case act.GiveAnswer(text=text):
            return {"action": "answer", "text": text}
        case act.Finished():
            return {"action": "terminate", "status": "success"}
        case act.Fail():
            return {"action": "terminate", "status": "failure"}
        case act.CallUser():
            return {"action": "call_user"}


def _pixels(point: Point) -> list[int]:
    return [round(point.x), round(point.y)]
