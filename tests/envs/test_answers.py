"""Tasks that ask a question: which answer counts, and how it is compared."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from arpo.actions import Action, Click, Finished, GiveAnswer, Point
from arpo.envs.answers import answer_in, answer_score, matches
from arpo.envs.desk.env import DeskEnv
from arpo.errors import EnvError
from arpo.types import Task
from desks import WORLD


def texts(*expected: str) -> dict[str, Any]:
    return {"func": "answer", "expected": {"type": "rule", "rules": {"texts": list(expected)}}}


QUESTION = Task(
    id="volume",
    instruction="What is the volume?",
    snapshot="",
    config=({"type": "world", "parameters": WORLD},),
    evaluator=texts("30", "30 %"),
)


def answer_after(*actions: Action) -> str | None:
    answer = None
    for action in actions:
        answer = answer_in(action, answer)
    return answer


def test_the_last_answer_counts_and_then_the_content_of_finished() -> None:
    assert answer_after(GiveAnswer(text="1"), GiveAnswer(text="2"), Finished(content="done")) == "2"
    assert answer_after(Click(point=Point(1, 2)), Finished(content="3")) == "3"
    assert answer_after(Finished()) is None


def test_case_and_spacing_do_not_matter() -> None:
    assert answer_score(QUESTION, " 30  % ") == 1.0
    assert answer_score(QUESTION, "31") == 0.0
    assert answer_score(QUESTION, None) == 0.0
    assert matches("Forty  TWO\n", "(42|forty two) ?") and not matches("forty-two, I think", "forty.two")
    assert answer_score(replace(QUESTION, evaluator=texts("A.b")), "a.B") == 1.0
    assert answer_score(replace(QUESTION, evaluator=texts("A.b")), "acb") == 0.0


async def play(*actions: Action) -> float:
    env = DeskEnv()
    await env.start(QUESTION)
    await env.step(actions)
    return await env.evaluate()


def test_a_question_on_desk() -> None:
    assert asyncio.run(play(GiveAnswer(text="30"), Finished())) == 1.0
    assert asyncio.run(play(Finished(content="30"))) == 1.0
    assert asyncio.run(play(Finished(content="40"))) == 0.0


def test_a_task_without_texts_is_refused() -> None:
    bad = Task(id="q", instruction="", snapshot="", config=(), evaluator={"func": "answer", "expected": {}})
    with pytest.raises(EnvError, match="task q: the evaluator 'answer' needs a list of texts"):
        answer_score(bad, "30")
