"""Tool calls in XML: Qwen3.5 and its descendants.

    <tool_call>
    <function=computer_use>
    <parameter=action>
    left_click
    </parameter>
    <parameter=coordinate>
    [105, 63]
    </parameter>
    </function>
    </tool_call>

Calls in JSON (`tool_calls`) are read as well: the models write both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from arpo.actions import Action
from arpo.dialects import tool_calls
from arpo.dialects.base import Answer, Dialect, ParseError, bounded, quoted, thought_of
from arpo.dialects.computer_use import TOOLS, from_action, to_actions

_FUNCTION = re.compile(r"\s*<function=([\w.-]{1,40})>")
_PARAMETER = re.compile(r"\s*<parameter=([\w.-]{1,40})>")
_END = "</parameter>"
_CLOSED = re.compile(r"\s*(?:</function>\s*)?\Z")
# These arguments are texts, even if they look like a number.
_TEXTS = ("action", "text", "status", "button", "direction")


def parse(text: str) -> Answer:
    """Parse one answer."""
    rest = tool_calls.after_thought(text)
    found = list(tool_calls.blocks(rest))
    if not found or found[0].lstrip().startswith("{"):
        return tool_calls.parse(text)
    actions: list[Action] = []
    for block in found:
        actions += to_actions(*_call(block))
    return Answer(thought=thought_of(text), actions=bounded(actions))


def write(actions: Sequence[Action], thought: str = "") -> str:
    """The opposite of `parse`."""
    calls = ("\n".join(_lines(from_action(action))) for action in actions)
    return "\n".join([*filter(None, [thought and f"Thought: {thought}"]), *map(tool_calls.in_tags, calls)])


def _lines(arguments: Mapping[str, Any]) -> Iterator[str]:
    yield f"<function={TOOLS[0]}>"
    for name, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield from (f"<parameter={name}>", written, _END)
    yield "</function>"


def _call(block: str) -> tuple[str, dict[str, Any]]:
    head = _FUNCTION.match(block)
    if head is None:
        raise ParseError(f"expected <function=NAME>, got {quoted(block.strip())}")
    arguments: dict[str, Any] = {}
    position = head.end()
    while parameter := _PARAMETER.match(block, position):
        end = block.find(_END, parameter.end())
        if end < 0:
            raise ParseError(f"<parameter={parameter[1]}> is not closed")
        arguments[parameter[1]] = _value(parameter[1], block[parameter.end() : end])
        position = end + len(_END)
    if not _CLOSED.match(block, position):
        raise ParseError(f"expected <parameter=NAME> or </function>, got {quoted(block[position:].strip())}")
    if "action" not in arguments and "type" in arguments:
        arguments["action"] = arguments.pop("type")
    return head[1], arguments


def _value(name: str, text: str) -> Any:
    if name == "text":
        return text.removeprefix("\n").removesuffix("\n")
    if name in _TEXTS or tool_calls.depth(text) > tool_calls.MAX_DEPTH:
        return text.strip()
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


QWEN3_5 = Dialect(
    name="qwen3_5",
    names=r"qwen3[._-]?[5-9]|holo3",
    types=("qwen3_5", "qwen3_5_moe"),
    coordinates=tool_calls.RELATIVE,
    parse=parse,
    write=write,
    examples=(
        "<think>\nhm\n</think>\n\n<tool_call>\n<function=computer_use>\n<parameter=action>\nleft_click\n</parameter>\n"
        "<parameter=coordinate>\n[10, 20]\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=computer_use><parameter=action>type</parameter><parameter=text>a\nb</parameter>"
        "</function></tool_call>",
        '<tool_call>{"name": "computer_use", "arguments": {"action": "wait", "time": 2}}</tool_call>',
    ),
)
