"""Why an episode ended, in words."""

from dataclasses import replace

import pytest

from arpo.config import RolloutConfig
from arpo.storage.codec import StoredEpisode
from arpo.types import StopReason
from arpo.viewer.pages.episode import describe_end

LIMITS = RolloutConfig(max_steps=15, max_answer_tokens=2048, max_context_tokens=65536)


def described(stop, *, score: float | None = 0.0, infeasible=False, steps=15, error="", limits=LIMITS):
    episode = StoredEpisode(
        episode_id="e",
        task_id="t",
        score=score or 0.0,
        malformed=stop in (StopReason.PARSE_ERROR, StopReason.LENGTH),
        stop=stop,
        steps=steps,
        policy_version=0,
        error=error,
        has_tokens=True,
        screenshots=(),
    )
    solved = None if score is None else score >= 0.5
    reason, detail = describe_end(episode, solved=solved, infeasible=infeasible, limits=limits)
    return f"{reason}: {detail}" if detail else reason


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        (StopReason.FINISHED, "the model called finished(), but the goal was not reached"),
        (StopReason.FAIL, "wrongly judged infeasible: the model called error_env()"),
        (StopReason.CALL_USER, "the model called call_user() instead of doing the task"),
        (StopReason.TERMINATED, "the environment ended the episode, but the goal was not reached"),
        (StopReason.MAX_STEPS, "ran out of steps (15)"),
        (StopReason.PARSE_ERROR, "the answer was not in the action language: no 'Action:'"),
        (StopReason.LENGTH, "the answer was cut at 2,048 tokens"),
    ],
)
def test_each_reason_for_a_score_of_0_has_words(stop, words):
    assert described(stop, error="no 'Action:'" if stop is StopReason.PARSE_ERROR else "") == words


def test_a_success_says_how_it_ended():
    assert described(StopReason.FINISHED, score=1.0) == "solved: the model called finished()"
    own = described(StopReason.FINISHED, score=1.0, limits=replace(LIMITS, agent="python my_agent.py"))
    assert own == "solved: the agent program ended the episode"
    assert described(StopReason.MAX_STEPS, score=1.0) == "solved: ran out of steps (15)"
    cut = described(StopReason.PARSE_ERROR, score=1.0, error="bad")
    assert cut == "solved: the answer was not in the action language: bad"


def test_an_infeasible_task_asks_for_error_env():
    right = described(StopReason.FAIL, score=1.0, infeasible=True)
    assert right == "correctly judged infeasible: the model called error_env()"
    wrong = described(StopReason.FINISHED, infeasible=True)
    assert wrong == (
        "the model called finished(), but the task is infeasible: error_env() is the right answer"
    )


def test_without_an_evaluator_nobody_knows_whether_it_was_solved():
    assert described(StopReason.FINISHED, score=None) == "the model called finished()"
    assert described(StopReason.FAIL, score=None) == "judged infeasible: the model called error_env()"


def test_a_full_context_is_not_called_a_step_limit():
    words = "the conversation no longer fitted into rollout.max_context_tokens (65,536)"
    assert described(StopReason.MAX_STEPS, steps=7) == words
