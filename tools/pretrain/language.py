"""Languages of the answers in lessons: UI-TARS text, tool calls of Qwen2.5-VL, or verdicts of a judge.

    Thought: Click Save
    <tool_call>
    {"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [105, 63]}}
    </tool_call>

Task and screenshots are written as in the base model's prompt; those of a judge as `arpo judge` asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from arpo.actions import Action, Direction, render
from arpo.dialects.base import History, Layout
from arpo.dialects.tool_calls import CLOSE, OPEN, QWEN2_5_VL, write
from tools.pretrain.judging import question_phrases
from tools.pretrain.ladder import CARELESS, JUDGING, Stage

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
    ", ": ",",
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
    """`dialect` is the model.dialect that reads what `write` writes; a judge has none.

    `phrases` are one token each, after those of the base model, whose ids stay. Each maps to a text that
    means the same: it begins with the mean embedding of its tokens in the base model. `last` is the last
    stage. `purpose` is a text for the card.
    """

    dialect: str
    write: Write
    phrases: Mapping[str, str]
    purpose: str
    last: Stage = CARELESS


_ACTS = """It answers in the dialect `{dialect}` (`model.dialect`). It is a starting point for training
there: it reads well and acts carelessly, as its demonstrator did."""
_JUDGES = """It answers the questions of `arpo judge` about episodes there, in which the demonstrator made no
faults, or up to 1.5 times those below. It was never asked about goals and applications outside of desk:fresh;
before the last stage, it learned to act on them."""


def _language(dialect: str, write: Write, phrases: Mapping[str, str]) -> Language:
    return Language(dialect=dialect, write=write, phrases=phrases, purpose=_ACTS.format(dialect=dialect))


LANGUAGES = {
    "ui_tars": _language("ui_tars_1_5", render, {}),
    "tool_calls": _language(f"{__name__}:TOOL_CALLS", write, _CALL_PHRASES),
    "judge": Language(
        dialect="",
        write=render,
        phrases={each: each for each in question_phrases()},
        purpose=_JUDGES,
        last=JUDGING,
    ),
}
