"""Tasks that ask a question: the evaluator "answer" compares the answer of the model with the expected texts.

    {"func": "answer", "expected": {"type": "rule", "rules": {"texts": ["42", "forty-two"]}}}

The answer is the text of the last `GiveAnswer`, or else the content of `Finished`. Case and spacing do not
matter.
"""

from __future__ import annotations

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
            return float(answer is not None and _plain(answer) in map(_plain, texts))
        case _:
            raise EnvError(
                "evaluate",
                f"task {task.id}: the evaluator 'answer' needs a list of texts: "
                'expected = {"type": "rule", "rules": {"texts": ["42"]}}',
            )


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
