"""Tasks that ask a question: is the answer of the model the expected one?

    {"func": "answer", "expected": {"type": "rule", "rules": {"texts": ["42", "forty-two"]}}}
    {"answer": "42|forty-two"}    a check of the browser, with a regular expression

The answer is the text of the last `GiveAnswer`, or else the content of `Finished`. Case and spacing do not
matter.
"""

from __future__ import annotations

import re

from arpo.actions import Action, Finished, GiveAnswer
from arpo.errors import EnvError
from arpo.types import Task

ANSWER = "answer"


def answer_in(action: Action, before: str | None) -> str | None:
    """The answer after this action; `before`: the one given earlier in the episode."""
    match action:
        case GiveAnswer(text=text):
            return text
        case Finished(content=content) if content and before is None:
            return content
        case _:
            return before


def answer_score(task: Task, answer: str | None) -> float:
    """1 if the answer is one of the expected texts, else 0. A task without texts raises EnvError."""
    match task.evaluator:
        case {"expected": {"rules": {"texts": [*texts]}}} if texts and all(isinstance(t, str) for t in texts):
            return float(any(matches(answer, re.escape(_spaced(text))) for text in texts))
        case _:
            raise EnvError(
                "evaluate",
                f"task {task.id}: the evaluator 'answer' needs a list of texts: "
                'expected = {"type": "rule", "rules": {"texts": ["42"]}}',
            )


def matches(answer: str | None, pattern: str) -> bool:
    """Whether the regular expression matches the whole answer. No answer matches none."""
    return answer is not None and re.fullmatch(pattern, _spaced(answer), re.IGNORECASE) is not None


def _spaced(text: str) -> str:
    return " ".join(text.split())
