"""Tool calls in JSON: Qwen2.5-VL, Qwen3-VL, EvoCUA, GUI-Owl, MAI-UI.

    Action: open the menu
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [105, 63]}}
    </tool_call>

A thought may stand before the calls: plain text, or text in <think> or <thinking>. A call inside a thought
does not count. Calls on lines of their own count without the tags, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from arpo.actions import Action
from arpo.dialects.base import (
    AGENTS,
    PIXELS,
    Answer,
    Coordinates,
    Dialect,
    History,
    Layout,
    ParseError,
    bounded,
    one_line,
    quoted,
    thought_of,
)
from arpo.dialects.computer_use import TOOLS, from_action, to_actions

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_THOUGHTS = ("think", "thinking")
MAX_DEPTH = 20  # of nested brackets in JSON


def parse(text: str) -> Answer:
    r"""Parse one answer.

    >>> parse('<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "time": 2}}</tool_call>')
    Answer(thought='', actions=(Wait(seconds=2.0),))
    """
    rest = after_thought(text)
    calls = [read_json(block) for block in blocks(rest)] or list(_bare_calls(rest))
    if not calls:
        raise ParseError(f"the answer contains no {OPEN}")
    actions: list[Action] = []
    for call in calls:
        actions += to_actions(call.get("name"), _arguments(call.get("arguments")))
    return Answer(thought=thought_of(text), actions=bounded(actions))


def write(actions: Sequence[Action], thought: str = "") -> str:
    """The opposite of `parse`."""
    calls = ({"name": TOOLS[0], "arguments": from_action(action)} for action in actions)
    texts = (json.dumps(call, ensure_ascii=False) for call in calls)
    return "\n".join([*filter(None, [thought and f"Thought: {thought}"]), *map(in_tags, texts)])


def in_tags(call: str) -> str:
    return f"{OPEN}\n{call}\n{CLOSE}"


def after_thought(text: str) -> str:
    """The part of an answer after its thought in tags. Raises ParseError if a tag is not closed."""
    for name in _THOUGHTS:
        end = text.rfind(f"</{name}>")
        if end >= 0:
            return text[end + len(name) + 3 :]
        if f"<{name}>" in text:
            raise ParseError(f"the thought in <{name}> is not closed")
    return text


def blocks(text: str) -> Iterator[str]:
    """The texts between the tags. The last tag may be missing, as after a stop text."""
    position = 0
    while (start := text.find(OPEN, position)) >= 0:
        end = text.find(CLOSE, start)
        if end < 0:
            yield text[start + len(OPEN) :]
            return
        yield text[start + len(OPEN) : end]
        position = end + len(CLOSE)


def read_json(text: str) -> dict[str, Any]:
    """A JSON object. Raises ParseError for everything else, and for deeply nested text."""
    if depth(text) > MAX_DEPTH:
        raise ParseError(f"the call is nested more than {MAX_DEPTH} times")
    try:
        found = json.loads(text)
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        raise ParseError(f"the call is not JSON ({reason}): {quoted(text.strip())}") from None
    if not isinstance(found, dict):
        raise ParseError(f"the call must be a JSON object, got {quoted(text.strip())}")
    return found


def depth(text: str) -> int:
    """An upper limit of the nesting of brackets in a text: brackets inside quotes count as well."""
    deepest = level = 0
    for character in text:
        if character in "([{":
            level += 1
            deepest = max(deepest, level)
        elif character in ")]}":
            level -= 1
    return deepest


def _bare_calls(text: str) -> Iterator[dict[str, Any]]:
    for line in map(str.strip, text.splitlines()):
        if line.startswith("{") and line.endswith("}"):
            found = read_json(line)
            if {"name", "arguments"} <= found.keys():
                yield found


def _arguments(value: Any) -> Any:
    """Some models write the arguments as a text with JSON."""
    return read_json(value) if isinstance(value, str) else value


_CLICK = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [10, 20]}}'
_KEYS = '{"name": "computer_use", "arguments": {"action": "key", "keys": ["ctrl", "c"]}}'
_TYPE = '{"name": "computer_use", "arguments": {"action": "type", "text": "it\'s\\n", "clear": 1}}'
_EXAMPLES = (
    f"<think>\nhm\n</think>\nAction: open it\n{OPEN}\n{_CLICK}\n{CLOSE}",
    f"<thinking>hm</thinking>{OPEN}{_CLICK}{CLOSE}{OPEN}{_KEYS}{CLOSE}<conclusion>done</conclusion>",
    f"Action: copy\n{_KEYS}",
    f"{OPEN}{_TYPE}{CLOSE}",
)
# OSWorld's agents divide by 999 and round down.
RELATIVE = Coordinates(full=999, floor=True)


def _action_line(text: str) -> str:
    """Qwen3-VL's line of a step: the text after "Action:"."""
    return next((line.split("Action:")[-1].strip() for line in _starting(text, "action:")), one_line(text))


def _announcement(text: str) -> str:
    """Qwen2.5-VL's line of a step: its first announcement."""
    return next(_starting(text, "action:", "step", "i will", "i'll", "now i"), one_line(text))


def _starting(text: str, *starts: str) -> Iterator[str]:
    lines = (line.strip() for line in text.split("\n"))
    return (line for line in lines if line.lower().startswith(starts))


def _conclusion(text: str) -> str:
    """GUI-Owl's line of a step: its conclusion, or else its thought."""
    found = (text.rpartition(f"<{tag}>")[2].partition(f"</{tag}>")[0] for tag in ("conclusion", "thinking"))
    tagged = [part for tag, part in zip(("conclusion", "thinking"), found, strict=True) if f"<{tag}>" in text]
    return next(filter(None, tagged), one_line(text))


_QWEN2_5 = "Qwen25VLAgent.predict"
_QWEN3 = "Qwen3VLAgent.predict"
EVOCUA = Dialect(
    name="evocua",
    names=r"evocua",
    types=("qwen3_vl",),
    coordinates=RELATIVE,
    parse=parse,
    write=write,
    examples=_EXAMPLES,
)
QWEN3_VL = replace(
    EVOCUA,
    name="qwen3_vl",
    names=r"qwen3-?vl",
    prompt=f"{AGENTS}/qwen3vl_agent.py:{_QWEN3}.instruction_prompt,system={_QWEN3}.system_prompt,"
    "previous_actions_str={history|None},coordinate_type=relative",
    layout=Layout.WITH_FIRST_SCREENSHOT,
    history=History.TEXT,
    summary=_action_line,
)
QWEN2_5_VL = replace(
    QWEN3_VL,
    name="qwen2_5_vl",
    names=r"qwen2[._-]?5-?vl",
    types=("qwen2_5_vl",),
    coordinates=Coordinates(full=None, floor=True),
    prompt=f"{AGENTS}/qwen25vl_agent.py:{_QWEN2_5}.instruction_prompt,system={_QWEN2_5}.system_prompt,"
    "previous_actions_str={history|None}",
    summary=_announcement,
)
GUI_OWL = replace(
    EVOCUA,
    name="gui_owl",
    names=r"gui-?owl(?!-1\.5)",
    types=("qwen2_5_vl",),
    coordinates=PIXELS,
    prompt=f"{AGENTS}/owl_agent.py:get_prompt.user_prompt,system=+OWL_PROMPT,"
    "history={history|No history. This is the first step.}",
    layout=Layout.NEWEST_SCREENSHOT_ALONE,
    history=History.TEXT,
    summary=_conclusion,
)
GUI_OWL_1_5 = replace(EVOCUA, name="gui_owl_1_5", names=r"gui-?owl")
MAI_UI = replace(EVOCUA, name="mai_ui", names=r"mai-?ui")
