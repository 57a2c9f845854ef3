"""Conformance check of a dialect: its examples parse, and damaged examples parse or raise ParseError.

A dialect of your own is checked whenever a command opens it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

from arpo.dialects.base import MAX_CALLS, Answer, Dialect, ParseError, clipped

MUTATIONS = 500  # damaged answers in one check
_SCREEN, _RESIZED = (1920, 1080), (1932, 1092)
PIECES = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "```", "```python\n", "<|begin_of_box|>", "Action:",
    "{", "}", "[", "]", "(", ")", "'", '"', "\\", "\n", ",", "=", ":", "\x00", "\ud800", "１", "1e999",
    "-", "NaN", "<function=", "<parameter=", "</parameter>", "null", "true", "9" * 50, "lambda: 0", "**", "é",
)  # fmt: skip


def check_dialect(dialect: Any, mutations: int = MUTATIONS, seed: int = 0) -> list[str]:
    """The faults of a dialect, one line each; empty if it conforms."""
    if not isinstance(dialect, Dialect):
        return [f"is {clipped(repr(dialect))}, must be an arpo.dialects.base.Dialect"]
    faults = _check_names(dialect)
    if not dialect.examples:
        return [*faults, "has no examples: give answers that parse"]
    for example in dialect.examples:
        fault = _fault(dialect, example, may_be_refused=False)
        faults += [f"example {clipped(repr(example))}: {fault}"] if fault else []
    rng = random.Random(f"{dialect.name}{seed}")
    for _ in range(mutations if not faults else 0):
        text = mutated(rng, dialect.examples)
        if fault := _fault(dialect, text, may_be_refused=True):
            return [f"answer {text!r}: {fault}"]
    return faults


def mutated(rng: random.Random, examples: Sequence[str]) -> str:
    """An example with up to six random damages."""
    text = rng.choice(examples)
    for _ in range(rng.randint(1, 6)):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice((0, 0, 1, 2, 5, 30)))
        text = text[:start] + rng.choice((rng.choice(PIECES), rng.choice(examples)[:40], "")) + text[end:]
    return text


def _check_names(dialect: Dialect) -> list[str]:
    try:
        re.compile(dialect.names)
    except re.error as error:
        return [f"names = {dialect.names!r}: is no regular expression ({error})"]
    return [] if dialect.name.isidentifier() else [f"name = {dialect.name!r}: must be one word"]


def _fault(dialect: Dialect, text: str, *, may_be_refused: bool) -> str:
    try:
        answer = dialect.parse(text)
    except ParseError as error:
        return "" if may_be_refused and str(error) else f"raised ParseError: {error}"
    except Exception as error:
        return f"raised {type(error).__name__}, must raise ParseError: {error}"
    if not isinstance(answer, Answer) or not isinstance(answer.actions, tuple):
        return f"returned {clipped(repr(answer))}, must return Answer(thought=…, actions=(…,))"
    if not 0 < len(answer.actions) <= MAX_CALLS:
        return f"returned {len(answer.actions)} actions, must return 1 to {MAX_CALLS}: use `bounded`"
    if not isinstance(dialect.summary(text), str):
        return "its summary is no text"
    try:
        for action in answer.actions:
            dialect.coordinates.to_screen(action, _RESIZED, _SCREEN)
    except Exception as error:
        return f"its actions cannot be scaled to the screen: {type(error).__name__}: {error}"
    return ""
