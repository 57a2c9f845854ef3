"""Success rates of played groups. Failed episodes are counted separately, never as a score of 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from arpo.envs.pool import Quarantined
from arpo.errors import PromptTooLong, UserError
from arpo.reporting.display import Display, count_noun
from arpo.rollout.scheduler import describe_failure
from arpo.types import Failure, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The scores of one evaluation.

        Score(by_task={"a": (1.0, 0.0), "b": (1.0,)}, failures=1).rate  # 2 of 3 episodes: 0.667

    `failures` is the number of episodes that could not be played. They are not in `by_task`.
    """

    by_task: Mapping[str, tuple[float, ...]]
    failures: int

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Score:
        return cls(
            by_task={group.task_id: tuple(t.score for t in group.trajectories) for group in groups},
            failures=sum(len(group.failures) for group in groups),
        )

    @property
    def successes(self) -> float:
        return sum(sum(scores) for scores in self.by_task.values())

    @property
    def episodes(self) -> int:
        return sum(len(scores) for scores in self.by_task.values())

    @property
    def rate(self) -> float:
        """Mean score. NaN if no episode could be played."""
        return self.successes / self.episodes if self.episodes else math.nan


def without_partial_credit(group: Group, partial: float) -> Group:
    """The group with scores up to `partial` set to 0. Partial credit (env.partial) is for training only."""
    reached = tuple(
        trajectory if trajectory.score > partial else replace(trajectory, score=0.0)
        for trajectory in group.trajectories
    )
    return replace(group, trajectories=reached)


class AllFailed(UserError):
    """No episode could be played. `failures` are for failures.jsonl."""

    def __init__(self, message: str, failures: Sequence[Failure]) -> None:
        super().__init__(message)
        self.failures = failures


def report_failures(groups: Sequence[Group], display: Display, *, some_tasks: bool = False) -> None:
    """Show how many episodes failed, and the first reason. Raises AllFailed if all of them failed.

    Quarantined episodes were never tried, so a batch of them alone raises nothing. The same holds for tasks
    whose prompt is too long if the groups are only `some_tasks` of the run: the others may fit.
    """
    failures = [failure for group in groups for failure in group.failures]
    if not failures:
        return
    message = f"{count_noun(len(failures), 'episode')} failed. First failure: {describe_failure(failures[0])}"
    unplayable = {Quarantined.__name__, *([PromptTooLong.__name__] if some_tasks else [])}
    tried = any(failure.kind not in unplayable for failure in failures)
    if tried and not any(group.trajectories for group in groups):
        if failures[0].kind == PromptTooLong.__name__:
            raise AllFailed(f"all {message}", failures)
        source = "engine" if failures[0].where == "generate" else "environment (`arpo check-env` helps)"
        raise AllFailed(f"all {message}. Fix the {source}, then run the same command again", failures)
    display.note(message)
