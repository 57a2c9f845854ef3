"""Answers with pyautogui code: OpenCUA, EvoCUA-S1, Kimi.

    ## Action:
    Open the menu
    ## Code:
    ```python
    pyautogui.click(x=105, y=63)
    ```

The last block counts. It is read as data (`literal_calls`) and never run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import arpo.actions as act
from arpo.actions import POINTER, Action, Direction, Point
from arpo.dialects.base import (
    AGENTS,
    MAX_CALLS,
    Answer,
    Coordinates,
    Dialect,
    History,
    Layout,
    ParseError,
    bounded,
    clipped,
    is_coordinate,
    one_line,
    quoted,
    scroll_amount,
    thought_of,
    wait_seconds,
)
from arpo.dialects.literal_calls import LiteralCall, read_calls
from arpo.keyboard import canonical_keys

FENCE = "```"
_LANGUAGES = ("python", "code")
_WAIT_SECONDS = 20.0  # of computer.wait(), as the models are told


def parse(text: str) -> Answer:
    r"""Parse one answer.

    >>> parse("## Action:\nOpen it\n## Code:\n```python\npyautogui.click(x=105, y=63)\n```").actions
    (Click(point=Point(x=105.0, y=63.0)),)
    """
    actions: list[Action] = []
    clipboard = ""
    for call in read_calls(last_block(text)):
        if call.name == "pyperclip.copy":
            clipboard = _text(call, "text", call.bound("text"))
            continue
        if call.name not in _BUILDERS:
            raise ParseError(f"unknown function {quoted(call.name)}")
        built = _BUILDERS[call.name](call)
        if clipboard and built == [act.Hotkey(keys=("ctrl", "v"))]:
            built = [act.Type(text=clipboard)]
        actions += built
        if len(actions) > MAX_CALLS:
            break
    return Answer(thought=thought_of(text), actions=bounded(actions))


def last_block(text: str) -> str:
    """The last complete block of code in an answer."""
    parts = text.split(FENCE)
    if len(parts) < 3:
        raise ParseError(f"the answer contains no block of code between {FENCE}")
    block = parts[(len(parts) - 1) // 2 * 2 - 1].strip()
    for language in _LANGUAGES:
        if block.lower().startswith(language):
            return block[len(language) :].strip()
    return block


def _point(call: LiteralCall, values: dict[str, Any]) -> Point:
    """The position of x and y; the pointer's if both are missing."""
    x: Any
    y: Any
    x, y = values.get("x"), values.get("y")
    if isinstance(x, list) and y is None and len(x) == 2:
        x, y = x
    if x is None and y is None:
        return POINTER
    if not (is_coordinate(x) and is_coordinate(y)):
        raise ParseError(f"{call.name}(): x and y must be numbers, got {clipped(repr((x, y)))}")
    return Point(float(x), float(y))


def _number(call: LiteralCall, name: str, values: dict[str, Any], default: float | None = None) -> float:
    value: Any = values.get(name, default)
    if not is_coordinate(value):
        raise ParseError(f"{call.name}(): {name} must be a number, got {clipped(repr(value))}")
    return float(value)


def _text(call: LiteralCall, name: str, values: dict[str, Any]) -> str:
    value = values.get(name)
    if not isinstance(value, str):
        raise ParseError(f"{call.name}(): {name} must be a text, got {clipped(repr(value))}")
    return value


def _keys(call: LiteralCall, value: Any) -> list[tuple[str, ...]]:
    """Canonical keys of each text in a list, or of one text."""
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) for name in names):
        raise ParseError(f"{call.name}() needs keys, got {clipped(repr(value))}")
    try:
        return [canonical_keys(name) for name in names]
    except ValueError as error:
        raise ParseError(f"{call.name}(): {error}") from None


def _refuse_button(call: LiteralCall, values: dict[str, Any]) -> None:
    if values.get("button", "left") not in ("left", "primary"):
        raise ParseError(f"{call.name}(): only the left button is supported")


_CLICKS: dict[tuple[str, int], Callable[..., Action]] = {
    ("left", 1): act.Click,
    ("left", 2): act.DoubleClick,
    ("left", 3): act.TripleClick,
    ("right", 1): act.RightClick,
    ("middle", 1): act.MiddleClick,
}


def _click(call: LiteralCall) -> list[Action]:
    values = call.bound("x", "y", "clicks", "interval", "button", "duration")
    clicks, button = values.get("clicks", 1), values.get("button", "left")
    kind = _CLICKS.get((button, clicks)) if isinstance(button, str) and type(clicks) is int else None
    if kind is None:
        raise ParseError(f"{call.name}(): no action has clicks={clicks!r}, button={clipped(repr(button))}")
    return [kind(point=_point(call, values))]


def _pointed(kind: Callable[..., Action]) -> Callable[[LiteralCall], list[Action]]:
    def build(call: LiteralCall) -> list[Action]:
        values = call.bound("x", "y", "interval", "button", "duration")
        return [kind(point=_point(call, values))]

    return build


def _held(kind: Callable[..., Action]) -> Callable[[LiteralCall], list[Action]]:
    def build(call: LiteralCall) -> list[Action]:
        values = call.bound("x", "y", "button", "duration")
        _refuse_button(call, values)
        return [kind(point=_point(call, values))]

    return build


def _move(call: LiteralCall) -> list[Action]:
    return [act.Hover(point=_point(call, call.bound("x", "y", "duration", "tween")))]


def _drag(call: LiteralCall) -> list[Action]:
    values = call.bound("x", "y", "duration", "tween", "button", "mouseDownUp")
    _refuse_button(call, values)
    return [act.Drag(start=POINTER, end=_point(call, values))]


def _scroll(call: LiteralCall) -> list[Action]:
    values = call.bound("clicks", "x", "y")
    notches = _number(call, "clicks", values)
    horizontal = call.name == "pyautogui.hscroll"
    ways = (Direction.RIGHT, Direction.LEFT) if horizontal else (Direction.UP, Direction.DOWN)
    point = _point(call, values)
    return [
        act.Scroll(
            point=None if point is POINTER else point,
            direction=ways[notches < 0],
            amount=scroll_amount(notches),
        )
    ]


def _press(call: LiteralCall) -> list[Action]:
    values = call.bound("keys", "presses", "interval")
    presses = _number(call, "presses", values, 1)
    if not 0 <= presses <= MAX_CALLS:
        raise ParseError(f"{call.name}(): presses must be at most {MAX_CALLS}")
    keys = _keys(call, values.get("keys", values.get("key")))
    if len(keys) * presses > MAX_CALLS:
        raise ParseError(f"the answer has more than {MAX_CALLS} calls")
    return [act.Hotkey(keys=pressed) for _ in range(int(presses)) for pressed in keys]


def _hotkey(call: LiteralCall) -> list[Action]:
    given = call.positional[0] if len(call.positional) == 1 else list(call.positional)
    return [act.Hotkey(keys=tuple(key for keys in _keys(call, given) for key in keys))]


def _set_key(kind: Callable[..., Action]) -> Callable[[LiteralCall], list[Action]]:
    def build(call: LiteralCall) -> list[Action]:
        return [kind(key=key) for key in _keys(call, call.bound("key").get("key"))[0]]

    return build


def _write(call: LiteralCall) -> list[Action]:
    values = call.bound("message", "interval")
    value = values.get("message", values.get("text"))
    if isinstance(value, list):
        return [act.Hotkey(keys=keys) for keys in _keys(call, value)]
    text = _text(call, "message", {"message": value})
    return [act.Type(text=text.removesuffix("\n"), submit=text.endswith("\n"))]


def _sleep(call: LiteralCall) -> list[Action]:
    return [act.Wait(seconds=wait_seconds(_number(call, "seconds", call.bound("seconds"))))]


def _terminate(call: LiteralCall) -> list[Action]:
    values = call.bound("status", "answer")
    answer = values.get("answer")
    answered: list[Action] = [act.GiveAnswer(text=answer)] if isinstance(answer, str) and answer else []
    match values.get("status"):
        case "success":
            return [*answered, act.Finished()]
        case "failure" | "fail":
            return [*answered, act.Fail()]
    raise ParseError(f"{call.name}(): status must be success or failure")


_BUILDERS: dict[str, Callable[[LiteralCall], list[Action]]] = {
    "pyautogui.click": _click,
    "pyautogui.leftClick": _pointed(act.Click),
    "pyautogui.rightClick": _pointed(act.RightClick),
    "pyautogui.middleClick": _pointed(act.MiddleClick),
    "pyautogui.doubleClick": _pointed(act.DoubleClick),
    "pyautogui.tripleClick": _pointed(act.TripleClick),
    "pyautogui.moveTo": _move,
    "pyautogui.dragTo": _drag,
    "pyautogui.mouseDown": _held(act.MouseDown),
    "pyautogui.mouseUp": _held(act.MouseUp),
    "pyautogui.scroll": _scroll,
    "pyautogui.vscroll": _scroll,
    "pyautogui.hscroll": _scroll,
    "pyautogui.press": _press,
    "pyautogui.keyDown": _set_key(act.KeyDown),
    "pyautogui.keyUp": _set_key(act.KeyUp),
    "pyautogui.hotkey": _hotkey,
    "pyautogui.write": _write,
    "pyautogui.typewrite": _write,
    "pyautogui.sleep": _sleep,
    "time.sleep": _sleep,
    "computer.triple_click": _pointed(act.TripleClick),
    "computer.tripleClick": _pointed(act.TripleClick),
    "computer.wait": lambda call: [act.Wait(seconds=_WAIT_SECONDS)],
    "computer.terminate": _terminate,
}

_ACTION = re.compile(r"^##\s*Action\s*:?[\n\r]+", re.MULTILINE)
_SECTION = re.compile(r"^##", re.MULTILINE)


def _action_section(text: str) -> str:
    """The text below "## Action"."""
    found = _ACTION.search(text)
    return _SECTION.split(text[found.end() :], maxsplit=1)[0].strip() if found else one_line(text)


_EXAMPLES = (
    "## Action:\nOpen\n## Code:\n```python\npyautogui.click(x=0.1, y=20)\npyautogui.write('a')\n```",
    "```python\npyautogui.hotkey(['ctrl', 'c'])\npyautogui.press('down', presses=2)\npyautogui.scroll(-5)```",
    "```code\ncomputer.terminate(status='success', answer='42')\n```",
)
OPENCUA = Dialect(
    name="opencua",
    names=r"opencua|evocua.*s1",
    types=("opencua",),
    coordinates=Coordinates(full=None, floor=True),
    parse=parse,
    examples=_EXAMPLES,
    prompt=f"{AGENTS}/opencua/prompts.py:INSTRUTION_TEMPLATE,system=SYSTEM_PROMPT_V1_L2",
    layout=Layout.WITH_NEWEST_SCREENSHOT,
    history=History.TEXT,
    summary=_action_section,
)
KIMI = Dialect(
    name="kimi",
    names=r"kimi",
    types=("kimi_vl",),
    coordinates=Coordinates(full=1),
    parse=parse,
    examples=_EXAMPLES,
)
