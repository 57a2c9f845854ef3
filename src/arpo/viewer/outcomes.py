"""Why an episode ended and why its score is 0, in words."""

from __future__ import annotations

from arpo.config import RolloutConfig
from arpo.reporting.numbers import format_count
from arpo.storage.codec import StoredEpisode
from arpo.types import StopReason


def describe_end(
    episode: StoredEpisode, *, solved: bool, infeasible: bool, limits: RolloutConfig
) -> tuple[str, str]:
    """Reason and detail, for example ("the answer was not in the action language", "no Action: line").

    `infeasible`: the right answer to the task is error_env(). The detail may be empty.
    """
    ending, detail = _ending(episode, limits)
    if episode.stop is StopReason.FAIL:
        judged = "correctly" if solved else "wrongly"
        return f"{judged} judged infeasible: the model called error_env()", ""
    if solved:
        return f"solved: {ending}", detail
    if infeasible and not episode.malformed:
        return f"{ending}, but the task is infeasible: error_env() is the right answer", ""
    if episode.stop in (StopReason.FINISHED, StopReason.TERMINATED):
        return f"{ending}, but the goal was not reached", ""
    return ending, detail


def _ending(episode: StoredEpisode, limits: RolloutConfig) -> tuple[str, str]:
    match episode.stop:
        case StopReason.FINISHED:
            return "the model called finished()", ""
        case StopReason.FAIL:
            return "the model called error_env()", ""
        case StopReason.CALL_USER:
            return "the model called call_user() instead of doing the task", ""
        case StopReason.TERMINATED:
            return "the environment ended the episode", ""
        case StopReason.MAX_STEPS if episode.steps < limits.max_steps:
            limit = format_count(limits.max_context_tokens)
            return f"the conversation no longer fitted into rollout.max_context_tokens ({limit})", ""
        case StopReason.MAX_STEPS:
            return f"ran out of steps ({format_count(limits.max_steps)})", ""
        case StopReason.PARSE_ERROR:
            return "the answer was not in the action language", episode.error
        case StopReason.LENGTH:
            return f"the answer was cut at {format_count(limits.max_answer_tokens)} tokens", ""
