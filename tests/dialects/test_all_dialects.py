"""What every dialect guarantees: no exception but ParseError, and time that does not grow with the square."""

import random

import pytest

from arpo.dialects.base import ParseError
from arpo.dialects.registry import DIALECTS

CLICK = '{"name": "computer_use", "arguments": {"action": "left_click", "coordinate": [10, 20]}}'
TOOL = f"<tool_call>\n{CLICK}\n</tool_call>"
SEEDS = (
    "Thought: open it\nAction: click(start_box='(105,63)')",
    "Action: type(content='it\\'s')\n\nwait()",
    f"<think>\nhm\n</think>\nAction: open it\n{TOOL}",
    f"<thinking>hm</thinking>{TOOL}{TOOL}<conclusion>done</conclusion>",
    '{"name": "computer_use", "arguments": {"action": "key", "keys": ["ctrl", "c"]}}',
    "<tool_call><function=computer_use><parameter=action>type</parameter><parameter=text>a\nb</parameter>"
    "</function></tool_call>",
    "## Action:\nOpen\n## Code:\n```python\npyautogui.click(x=10, y=20)\npyautogui.write('a')\n```",
    "```code\ncomputer.terminate(status='success', answer='42')\n```",
    "Open. <|begin_of_box|>left_click(start_box='[1,2]', element_info='a')<|end_of_box|>\nMemory:\n[]",
)
PIECES = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "```", "```python\n", "<|begin_of_box|>", "Action:",
    "{", "}", "[", "]", "(", ")", "'", '"', "\\", "\n", ",", "=", ":", "\x00", "\ud800", "１", "1e999",
    "-", "NaN", "<function=", "<parameter=", "</parameter>", "null", "true", "9" * 50, "lambda: 0", "**", "é",
)  # fmt: skip


PARSERS = tuple({dialect.parse: dialect for dialect in DIALECTS}.values())  # one dialect per parser


def mutated(rng: random.Random) -> str:
    text = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 0, 1, 2, 5, 30)))
        text = text[:start] + rng.choice((rng.choice(PIECES), rng.choice(SEEDS)[:40], "")) + text[end:]
    return text


def check(dialect, count, seed=0):
    """Parse mutated answers. Returns how many parsed."""
    rng, parsed = random.Random(f"{dialect.name}{seed}"), 0
    for _ in range(count):
        text = mutated(rng)
        try:
            actions = dialect.parse(text).actions
        except ParseError as error:
            assert 0 < len(str(error)) < 400, text
        else:
            assert 0 < len(actions) <= 32, text
            for action in actions:
                dialect.coordinates.to_screen(action, (1932, 1092), (1920, 1080))
            parsed += 1
    return parsed


@pytest.mark.parametrize("dialect", PARSERS, ids=lambda dialect: dialect.name)
def test_mutated_answers_parse_or_are_refused(dialect):
    assert check(dialect, 2000) > 20


@pytest.mark.slow
@pytest.mark.parametrize("dialect", PARSERS, ids=lambda dialect: dialect.name)
def test_long_repetitions_are_refused(dialect):
    """Quadratic work on 200,000 characters would take minutes."""
    for piece in PIECES:
        for start in ("", "Action: ", "<tool_call>", "```python\n", "<|begin_of_box|>", '{"name": "'):
            with pytest.raises(ParseError):
                dialect.parse(start + piece * (200_000 // len(piece)))
