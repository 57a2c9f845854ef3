"""Languages of the answers in lessons: UI-TARS text, or the tool calls of Qwen2.5-VL.

    Thought: Click Save
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [105, 63]}}
    </tool_call>

Task and screenshots are written as in the base model's prompt in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from arpo.actions import Action, Direction, render
from arpo.dialects.base import History, Layout
from arpo.dialects.tool_calls import CLOSE, OPEN, QWEN2_5_VL, write

Write = Callable[[Sequence[Action], str], str]  # of actions and thought, like `render`

# For model.dialect. The published prompt is too long for a tiny model, and shows the screen before the task.
TOOL_CALLS = replace(
    QWEN2_5_VL, name="tool_calls", prompt="desk", layout=Layout.TASK_FIRST, history=History.ANSWERS
)
_NOTCHES = {Direction.UP: 5, Direction.DOWN: -5}  # of a scroll without an amount


_CALL = f'\n{OPEN}\n{{"name": "computer_use", "arguments": {{"action": '
_END = f"}}}}\n{CLOSE}"
_CALL_PHRASES = {
    f'{_CALL}"left_click", "coordinate": [': "\nAction: click(start_box='(",
    f'{_CALL}"double_click", "coordinate": [': "\nAction: left_double(start_box='(",
    f'{_CALL}"right_click", "coordinate": [': "\nAction: right_single(start_box='(",
    f'{_CALL}"left_click_drag", "start_coordinate": [': "\nAction: drag(start_box='(",
    '], "coordinate": [': ")', end_box='(",
    f"]{_END}": ")')",
    f'{_CALL}"scroll", "coordinate": [': "\nAction: scroll(start_box='(",
    **{f'], "pixels": {pixels}{_END}': f")', direction='{way}')" for way, pixels in _NOTCHES.items()},
    f'{_CALL}"type", "text": "': "\nAction: type(content='",
    f'"{_END}': "')",
    f'\\n"{_END}': "\\n')",
    f'{_CALL}"key", "keys": ["': "\nAction: hotkey(key='",
    '", "': ",",
    f'"]{_END}': "')",
    f'{_CALL}"terminate", "status": "success"{_END}': "\nAction: finished()",
    f'{_CALL}"terminate", "status": "failure"{_END}': "\nAction: error_env()",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """`dialect` is the model.dialect that reads what `write` writes.

    `phrases` are one token each, after those of the base model, whose ids stay. Each maps to the token of the
    base model that means the same: it begins with this embedding.
    """

    dialect: str
    write: Write
    phrases: Mapping[str, str]


LANGUAGES = {
    "ui_tars": Language(dialect="ui_tars_1_5", write=render, phrases={}),
    "tool_calls": Language(dialect=f"{__name__}:TOOL_CALLS", write=write, phrases=_CALL_PHRASES),
}
