"""GLM-4.5V and later: one call, in a box.

    Open the menu. <|begin_of_box|>left_click(start_box='[105,63]', element_info='Menu')<|end_of_box|>
    Memory:
    []

The call is read as data (`literal_calls`). Without a box, the first line that is a call counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import arpo.actions as act
from arpo.actions import Action, Direction, Point
from arpo.dialects.base import (
    Answer,
    Dialect,
    ParseError,
    bounded,
    clipped,
    is_coordinate,
    quoted,
    scroll_amount,
    thought_of,
)
from arpo.dialects.literal_calls import read_calls
from arpo.dialects.tool_calls import RELATIVE, after_thought
from arpo.keyboard import canonical_keys

BEGIN, END = "<|begin_of_box|>", "<|end_of_box|>"
_WAIT_SECONDS = 5.0  # of WAIT(), as the model is told
_NUMBERS = re.compile(r"\s*\[?\s*(-?\d{1,6}(?:\.\d{1,6})?)\s*,\s*(-?\d{1,6}(?:\.\d{1,6})?)\s*\]?\s*")


def parse(text: str) -> Answer:
    r"""Parse one answer.

    >>> parse("Open it.\n<|begin_of_box|>left_click(start_box='[105,63]')<|end_of_box|>").actions
    (Click(point=Point(x=105.0, y=63.0)),)
    """
    calls = read_calls(_call_text(after_thought(text)))
    actions: list[Action] = []
    for call in calls:
        if call.name not in _BUILDERS:
            raise ParseError(f"unknown function {quoted(call.name)}")
        if call.positional:
            raise ParseError(f"{call.name}() takes named arguments only")
        actions.append(_BUILDERS[call.name](call.name, dict(call.named)))
    return Answer(thought=thought_of(text), actions=bounded(actions))


def _call_text(text: str) -> str:
    start = text.find(BEGIN)
    if start >= 0:
        end = text.find(END, start)
        return text[start + len(BEGIN) : end if end >= 0 else len(text)].strip()
    for line in text.splitlines():
        call = line.strip().removeprefix("Action:").strip()
        name, bracket, _ = call.partition("(")
        if bracket and name in _BUILDERS:
            return call
    raise ParseError(f"the answer contains no {BEGIN}")


def _point(call: str, name: str, arguments: dict[str, Any]) -> Point:
    value = arguments.get(name)
    if isinstance(value, str) and (found := _NUMBERS.fullmatch(value)):
        value = [float(found[1]), float(found[2])]
    if not isinstance(value, list) or len(value) != 2 or not all(map(is_coordinate, value)):
        raise ParseError(f"{call}() needs {name}='[x,y]', got {clipped(repr(value))}")
    return Point(float(value[0]), float(value[1]))


def _text(call: str, name: str, arguments: dict[str, Any]) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ParseError(f"{call}() needs {name}, a text, got {clipped(repr(value))}")
    return value


def _pointed(kind: Callable[..., Action]) -> Callable[[str, dict[str, Any]], Action]:
    return lambda call, arguments: kind(point=_point(call, "start_box", arguments))


def _drag(call: str, arguments: dict[str, Any]) -> Action:
    return act.Drag(start=_point(call, "start_box", arguments), end=_point(call, "end_box", arguments))


def _scroll(call: str, arguments: dict[str, Any]) -> Action:
    direction, step = _text(call, "direction", arguments).strip().lower(), arguments.get("step", 5)
    if direction not in set(Direction):
        raise ParseError(
            f"scroll(): direction must be one of {', '.join(Direction)}, got {quoted(direction)}"
        )
    if not is_coordinate(step):
        raise ParseError(f"scroll(): step must be a number, got {clipped(repr(step))}")
    point = _point(call, "start_box", arguments) if "start_box" in arguments else None
    return act.Scroll(point=point, direction=Direction(direction), amount=scroll_amount(step))


def _key(call: str, arguments: dict[str, Any]) -> Action:
    try:
        return act.Hotkey(keys=canonical_keys(_text(call, "keys", arguments)))
    except ParseError:
        raise
    except ValueError as error:
        raise ParseError(f"{call}(): {error}") from None


def _type(call: str, arguments: dict[str, Any]) -> Action:
    text = _text(call, "content", arguments)
    return act.Type(text=text.removesuffix("\n"), submit=text.endswith("\n"))


_BUILDERS: dict[str, Callable[[str, dict[str, Any]], Action]] = {
    "left_click": _pointed(act.Click),
    "right_click": _pointed(act.RightClick),
    "middle_click": _pointed(act.MiddleClick),
    "left_double_click": _pointed(act.DoubleClick),
    "hover": _pointed(act.Hover),
    "left_drag": _drag,
    "key": _key,
    "type": _type,
    "scroll": _scroll,
    "answer": lambda call, arguments: act.GiveAnswer(text=_text(call, "content", arguments)),
    "WAIT": lambda call, arguments: act.Wait(seconds=_WAIT_SECONDS),
    "DONE": lambda call, arguments: act.Finished(),
    "FAIL": lambda call, arguments: act.Fail(),
}

GLM_4_5V = Dialect(
    name="glm_4_5v",
    names=r"glm-?4",
    types=("glm4v", "glm4v_moe"),
    coordinates=RELATIVE,
    parse=parse,
    examples=(
        "Open. <|begin_of_box|>left_click(start_box='[1,2]', element_info='a')<|end_of_box|>\nMemory:\n[]",
        "Action: scroll(start_box='[1,2]', direction='down', step=5)\nMemory:\n[]",
        "<|begin_of_box|>type(content='a')<|end_of_box|>",
    ),
)
