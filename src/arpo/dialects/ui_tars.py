"""UI-TARS: calls with quoted arguments after "Action:".

    Thought: open it
    Action: click(start_box='(105,63)')

The parser scans calls with quoted arguments. It accepts the spellings of real models (boxes and points, key
names, unescaped quotes) and rejects everything else. It never evaluates text as code, and raises no exception
other than ParseError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import arpo.actions as act
from arpo.actions import Action, Direction, Point, render
from arpo.dialects.base import (
    MAX_CALLS,
    MAX_COORDINATE,
    PIXELS,
    THOUSANDTHS,
    Answer,
    Dialect,
    ParseError,
    bounded,
    clipped,
    quoted,
    scroll_amount,
    wait_seconds,
)
from arpo.keyboard import canonical_keys


def parse(text: str) -> Answer:
    r"""Parse one answer.

    >>> parse("Thought: open it\nAction: click(start_box='(105,63)')")
    Answer(thought='open it', actions=(Click(point=Point(x=105.0, y=63.0)),))
    """
    if token := _SPECIAL_TOKEN.search(text):
        raise ParseError(f"the answer contains the special token {token[0]}")
    label = _ACTION_LINE.search(text) or _ACTION.search(text)
    if label is None:
        raise ParseError("the answer contains no 'Action:'")
    return Answer(
        thought=_THOUGHT.sub("", text[: label.start()], count=1).strip(),
        actions=bounded(_calls(text, label.end())),
    )


class _Arguments:
    """The arguments of one call. Each method reads one argument and removes it."""

    def __init__(self, call: str, values: dict[str, str]) -> None:
        self._call = call
        self._values = values

    def optional(self, *names: str) -> str | None:
        for name in names:
            if name in self._values:
                return self._values.pop(name)
        return None

    def text(self, *names: str) -> str:
        value = self.optional(*names)
        if value is None:
            raise ParseError(f"{self._call}() needs {names[0]}=")
        return value

    def point(self, *names: str) -> Point:
        return _point(self.text(*names))

    def keys(self) -> tuple[str, ...]:
        written = self.text("key", "hotkey", "press")
        try:
            return canonical_keys(written)
        except ValueError as error:
            raise ParseError(f"{self._call}(): {error}") from None

    def key(self) -> str:
        keys = self.keys()
        if len(keys) != 1:
            raise ParseError(f"{self._call}() takes one key, got {clipped(' '.join(keys))}")
        return keys[0]

    def number(self, name: str) -> float | None:
        value = self.optional(name)
        if value is None:
            return None
        if re.fullmatch(_NUMBER, value.strip()) is None:
            raise ParseError(f"{self._call}(): {name}= must be a number, got {quoted(value)}")
        return _coordinate(value)

    def refuse_rest(self) -> None:
        if self._values:
            raise ParseError(f"{self._call}() has no argument {clipped(next(iter(self._values)))}=")


_POINT_NAMES = ("start_box", "point", "start_point")
_END_NAMES = ("end_box", "end_point")


def _scroll(args: _Arguments) -> act.Scroll:
    direction = args.text("direction").strip().lower()
    if direction not in set(Direction):
        raise ParseError(
            f"scroll(): direction= must be one of {', '.join(Direction)}, got {quoted(direction)}"
        )
    point, amount = args.optional(*_POINT_NAMES), args.number("amount")
    return act.Scroll(
        point=_point(point) if point else None,
        direction=Direction(direction),
        amount=None if amount is None else scroll_amount(amount),
    )


def _type(args: _Arguments) -> act.Type:
    content = args.text("content")
    return act.Type(text=content.removesuffix("\n"), submit=content.endswith("\n"))


def _wait(args: _Arguments) -> act.Wait:
    seconds = args.number("seconds")
    return act.Wait(seconds=None if seconds is None else wait_seconds(seconds))


def _call_user(args: _Arguments) -> act.CallUser:
    args.optional("content")
    return act.CallUser()


_BUILDERS: dict[str, Callable[[_Arguments], Action]] = {
    "click": lambda args: act.Click(point=args.point(*_POINT_NAMES)),
    "left_single": lambda args: act.Click(point=args.point(*_POINT_NAMES)),
    "left_double": lambda args: act.DoubleClick(point=args.point(*_POINT_NAMES)),
    "right_single": lambda args: act.RightClick(point=args.point(*_POINT_NAMES)),
    "middle_single": lambda args: act.MiddleClick(point=args.point(*_POINT_NAMES)),
    "left_triple": lambda args: act.TripleClick(point=args.point(*_POINT_NAMES)),
    "mouse_down": lambda args: act.MouseDown(point=args.point(*_POINT_NAMES)),
    "mouse_up": lambda args: act.MouseUp(point=args.point(*_POINT_NAMES)),
    "hover": lambda args: act.Hover(point=args.point(*_POINT_NAMES)),
    "long_press": lambda args: act.LongPress(point=args.point(*_POINT_NAMES)),
    "drag": lambda args: act.Drag(start=args.point(*_POINT_NAMES), end=args.point(*_END_NAMES)),
    "select": lambda args: act.Drag(start=args.point(*_POINT_NAMES), end=args.point(*_END_NAMES)),
    "scroll": _scroll,
    "hotkey": lambda args: act.Hotkey(keys=args.keys()),
    "press": lambda args: act.Hotkey(keys=args.keys()),
    "keydown": lambda args: act.KeyDown(key=args.key()),
    "keyup": lambda args: act.KeyUp(key=args.key()),
    "type": _type,
    "open_app": lambda args: act.OpenApp(name=args.text("app_name", "content", "name")),
    "press_home": lambda args: act.PressHome(),
    "press_back": lambda args: act.PressBack(),
    "wait": _wait,
    "answer": lambda args: act.GiveAnswer(text=args.text("content", "text")),
    "finished": lambda args: act.Finished(content=args.optional("content") or ""),
    "error_env": lambda args: act.Fail(),
    "call_user": _call_user,
}

_SPECIAL_TOKEN = re.compile(
    r"<\|(?:image_pad|video_pad|vision_start|vision_end|vision_pad|im_start|im_end|endoftext)\|>"
)
_ACTION = re.compile(r"\bAction\s*[:：]")
_ACTION_LINE = re.compile(r"^[ \t]*Action\s*[:：]", re.MULTILINE)
_THOUGHT = re.compile(r"^\s*Thought\s*[:：]")
_NAME = re.compile(r"([A-Za-z_]+)\s*\(\s*")
_ARGUMENT = re.compile(r"([A-Za-z_]+)\s*=\s*")
_BARE_POINT = re.compile(r"[(\[][-+0-9.,\s]*[)\]]")
_SPACE = re.compile(r"\s*")
_ESCAPE = re.compile(r"\\([nrt'\"\\])")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}

# Models often leave quotes inside a text unescaped. A quote therefore ends its argument only if valid syntax
# follows: the next argument, or the end of the call and then the end of the text, another call or a label.
# If no quote is followed by valid syntax, the answer is malformed. _ANY_CLOSING then finds the position that
# the error names. It is searched at most once per answer, so parsing takes linear time.
_NEXT_CALL = rf"(?:{'|'.join(_BUILDERS)})\s*\("
_NEXT_LABEL = r"(?:Thought|Reflection|Action_Summary|Action)\s*[:：]"
_VALID_REST = rf"\s*(?:,\s*[A-Za-z_]+\s*=|(?:,\s*)?\)\s*(?:\Z|{_NEXT_CALL}|{_NEXT_LABEL}))"
_CLOSING = {quote: re.compile(rf"\\.|({quote})(?={_VALID_REST})", re.DOTALL) for quote in "'\""}
_ANY_CLOSING = {quote: re.compile(rf"\\.|({quote})(?=\s*[,)])", re.DOTALL) for quote in "'\""}

_NUMBER = r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
_BETWEEN = r"(?: ?, ?| )"
_POINT = re.compile(
    rf"(?:<\|box_start\|>|<point>|<bbox>)? ?[(\[]? ?({_NUMBER}){_BETWEEN}({_NUMBER})"
    rf"(?:{_BETWEEN}({_NUMBER}){_BETWEEN}({_NUMBER}))? ?[)\]]? ?(?:<\|box_end\|>|</point>|</bbox>)?"
)


def _calls(text: str, position: int) -> tuple[Action, ...]:
    actions: list[Action] = []
    position = _skip(text, position)
    while position < len(text):
        if len(actions) == MAX_CALLS:
            raise ParseError(f"the answer has more than {MAX_CALLS} calls")
        action, end = _call(text, position)
        actions.append(action)
        position = _skip(text, end)
        if position < len(text) and "\n" not in text[end:position]:
            raise ParseError(f"unexpected text after the call: {quoted(text[position:])}")
    if not actions:
        raise ParseError("no call follows 'Action:'")
    return tuple(actions)


def _call(text: str, position: int) -> tuple[Action, int]:
    head = _NAME.match(text, position)
    if head is None:
        raise ParseError(f"expected a call, got {quoted(text[position:])}")
    name = head[1]
    if name not in _BUILDERS:
        raise ParseError(f"unknown function {quoted(name)}")
    values, position = _arguments(text, head.end(), name)
    arguments = _Arguments(name, values)
    action = _BUILDERS[name](arguments)
    arguments.refuse_rest()
    return action, position


def _arguments(text: str, position: int, call: str) -> tuple[dict[str, str], int]:
    """Read arguments up to the closing bracket. Returns them and the position after the bracket."""
    values: dict[str, str] = {}
    while not text.startswith(")", position):
        head = _ARGUMENT.match(text, position)
        if head is None:
            raise ParseError(f"{call}(): expected an argument or ), got {quoted(text[position:])}")
        if head[1] in values:
            raise ParseError(f"{call}() has {clipped(head[1])}= twice")
        values[head[1]], position = _value(text, head.end(), f"{call}({clipped(head[1])}=")
        position = _skip(text, position)
        if text.startswith(",", position):
            position = _skip(text, position + 1)
        elif not text.startswith(")", position):
            raise ParseError(f"{call}() is not closed: {quoted(text[position:])}")
    return values, position + 1


def _value(text: str, position: int, argument: str) -> tuple[str, int]:
    quote = text[position : position + 1]
    if quote not in _CLOSING:
        bare = _BARE_POINT.match(text, position)
        if bare is None:
            raise ParseError(f"{argument}…) needs a quoted value, got {quoted(text[position:])}")
        return bare[0], bare.end()
    for closing in (_CLOSING[quote], _ANY_CLOSING[quote]):
        for found in closing.finditer(text, position + 1):
            if found[1]:
                return _unescaped(text[position + 1 : found.start()]), found.end()
    raise ParseError(f"{argument}{quote}…: the quote is not closed")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPED.get(found[1], found[1]), text) if "\\" in text else text


def _point(text: str) -> Point:
    found = _POINT.fullmatch(" ".join(text.split()))
    if found is None:
        raise ParseError(f"expected (x,y) or (x1,y1,x2,y2), got {quoted(text)}")
    corners = [_coordinate(number) for number in found.groups() if number is not None]
    xs, ys = corners[0::2], corners[1::2]
    return Point(sum(xs) / len(xs), sum(ys) / len(ys))


def _coordinate(text: str) -> float:
    value = float(text)
    if abs(value) > MAX_COORDINATE:
        raise ParseError(f"no screen has the coordinate {clipped(text)}")
    return value


def _skip(text: str, position: int) -> int:
    found = _SPACE.match(text, position)
    assert found is not None
    return found.end()


def parse_solution(solution: Sequence[str]) -> list[tuple[Action, ...]]:
    """The actions of each step of `Task.solution`. Raises ParseError."""
    return [parse(f"Action: {step}").actions for step in solution]


_EXAMPLES = (
    "Thought: open it\nAction: click(start_box='(105,63)')",
    "Action: drag(start_box='<|box_start|>(1,2)<|box_end|>', end_box='(3,4)')\n\nhotkey(key='ctrl c')",
    "Thought: a\nAction: type(content='it\\'s\\n')",
    "Action: scroll(point='<point>1 2</point>', direction='down')\nwait()",
)
# Desk's base model and UI-TARS-1.5 answer in pixels, earlier models in thousandths of the screen.
UI_TARS_1_5 = Dialect(
    name="ui_tars_1_5",
    names=r"ui-?tars(?!-\d+b)",
    types=("qwen2_5_vl",),
    coordinates=PIXELS,
    parse=parse,
    write=render,
    examples=_EXAMPLES,
    prompt="desk",
)
UI_TARS = replace(
    UI_TARS_1_5, name="ui_tars", names=r"ui-?tars", types=("qwen2_vl",), coordinates=THOUSANDTHS
)
