"""Success rates of played groups. Failed episodes are counted separately, never as a score of 0."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from arpo.envs.pool import Quarantined
from arpo.errors import NotInTokens, PromptTooLong, RequestRefused, UserError
from arpo.reporting.display import Display, count_noun, describe_failure
from arpo.reporting.statistics import change_over_tasks
from arpo.types import Failure, Group

LASTING = (PromptTooLong, NotInTokens, RequestRefused)  # faults that another attempt would repeat
OF_JUDGE = "judge"  # where: an episode without a verdict (reward.judge)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The scores of one evaluation.

        Score(by_task={"a": (1.0, 0.0), "b": (1.0,)}, failures=1).rate  # 2 of 3 episodes: 0.667

    `failures` is the number of failed episodes. They are not in `by_task`. `left_out` has
    the tasks to leave out of the rate: see `over_same_tasks`.
    """

    by_task: Mapping[str, tuple[float, ...]]
    failures: int
    left_out: frozenset[str] = frozenset()

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Score:
        return cls(
            by_task={group.task_id: tuple(t.score for t in group.trajectories) for group in groups},
            failures=sum(len(group.failures) for group in groups),
        )

    @property
    def successes(self) -> float:
        return sum(map(sum, self.counted.values()))

    @property
    def episodes(self) -> int:
        return sum(map(len, self.counted.values()))

    @property
    def rate(self) -> float:
        """Mean score. NaN if no episode could be played."""
        return self.successes / self.episodes if self.episodes else math.nan

    @property
    def without_verdict(self) -> tuple[str, ...]:
        """Ids of the tasks of which no episode could be played."""
        return tuple(task for task, scores in self.by_task.items() if not scores)

    @property
    def counted(self) -> dict[str, tuple[float, ...]]:
        """The scores by task, without the tasks to leave out."""
        return {task: scores for task, scores in self.by_task.items() if task not in self.left_out}


def read_scores(record: Mapping[str, Any]) -> dict[str, Score]:
    """The scores by task set of a checked line of evaluations.jsonl."""
    return {
        name: Score(
            by_task={task: tuple(scores) for task, scores in by_task.items()},
            failures=record.get("failures", {}).get(name, 0),
        )
        for name, by_task in record["sets"].items()
    }


def over_same_tasks(
    before: Mapping[str, Score], after: Mapping[str, Score]
) -> tuple[dict[str, Score], dict[str, Score]]:
    """Both evaluations, by task set, with rates over the tasks with a verdict in both.

    Other task sets stay as they are. If the first evaluation has a verdict on tasks a and b, the second on b
    and c, both rates are over b, and `left_out` is {a, c}.
    """
    first, second = dict(before), dict(after)
    for name in before.keys() & after.keys():
        pair = before[name], after[name]
        verdicts = [{task for task, scores in one.by_task.items() if scores} for one in pair]
        tasks = frozenset(task for one in pair for task in one.by_task)
        left_out = tasks - (verdicts[0] & verdicts[1])
        first[name], second[name] = (replace(one, left_out=left_out) for one in pair)
    return first, second


def change_intervals(
    before: Mapping[str, Score], after: Mapping[str, Score]
) -> dict[str, tuple[float, float]]:
    """95% interval over tasks of the change of each set's rate. Pass the results of `over_same_tasks`."""
    found = {}
    for name in before.keys() & after.keys():
        first, second = before[name].counted, after[name].counted
        if tasks := [task for task in first if first[task] and second.get(task)]:
            rates = ([fmean(scores[task]) for task in tasks] for scores in (first, second))
            found[name] = change_over_tasks(*rates)
    return found


def by_kind(scores: Iterable[Score], kinds: Callable[[str], Sequence[str]]) -> dict[str, tuple[float, int]]:
    """Successes and episodes by kind of task. `kinds(task id)` are those of a task; it counts in each.

    >>> score = Score(by_task={"a": (1.0, 0.0), "b": (1.0,)}, failures=0)
    >>> by_kind([score], {"a": ("MoveFile", "SendMail"), "b": ("MoveFile",)}.__getitem__)
    {'MoveFile': (2.0, 3), 'SendMail': (1.0, 2)}
    """
    found: dict[str, list[float]] = {}
    for score in scores:
        for task, values in score.counted.items():
            for kind in kinds(task):
                found.setdefault(kind, []).extend(values)
    return {kind: (sum(values), len(values)) for kind, values in sorted(found.items()) if values}


def training_episodes(metrics: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Successes and episodes in the first and in the last tenth of the batches, at least one of each.

    It shows the progress of a run whose tasks never repeat: there is no list to evaluate before and after.
    `metrics` are lines of metrics.jsonl. Returns {} for fewer than two batches.

    >>> lines = [{"step": 1, "episodes": 8, "success": 0.25}, {"step": 2, "episodes": 16, "success": 0.5}]
    >>> training_episodes(lines)
    {'batches': 1, 'first': [2, 8], 'last': [4, 8]}
    """
    lines = [
        {"episodes": 0},
        *(line for line in metrics if line["step"] and line.get("episodes") is not None),
    ]
    counts = [
        (round((line.get("success") or 0.0) * played), played)
        for before, line in pairwise(lines)
        if (played := line["episodes"] - before["episodes"]) > 0
    ]
    if len(counts) < 2:
        return {}
    window = max(1, len(counts) // 10)
    parts = {"first": counts[:window], "last": counts[-window:]}
    return {"batches": window} | {
        name: [sum(column) for column in zip(*part, strict=True)] for name, part in parts.items()
    }


def report_without_verdict(name: str, score: Score, display: Display) -> None:
    """List the tasks without a verdict by name."""
    if missing := score.without_verdict:
        display.note(
            f"{name}: no verdict on {len(missing)} of {count_noun(len(score.by_task), 'task')}, because all "
            f"their episodes failed. The success rate leaves them out: {', '.join(missing)}"
        )


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


def describe_failures(groups: Sequence[Group]) -> str:
    """How many episodes failed, and the first reason; "" if none did."""
    failures = [failure for group in groups for failure in group.failures]
    if not failures:
        return ""
    return f"{count_noun(len(failures), 'episode')} failed. First failure: {describe_failure(failures[0])}"


def report_failures(
    groups: Sequence[Group], display: Display, *, some_tasks: bool = False, answered: bool = False
) -> None:
    """Show how many episodes failed, and the first reason. Raises AllFailed if all of them failed.

    Quarantined episodes were never tried, so a batch of them alone raises nothing. The same holds for tasks
    whose prompt is too long if the groups are only `some_tasks` of the run: the others may fit. It holds for
    all lasting faults if the engine has just `answered` in other episodes: settings and server are right.
    """
    message, failures = describe_failures(groups), [failure for group in groups for failure in group.failures]
    if not failures:
        return
    lasting = LASTING if answered else (PromptTooLong,) if some_tasks else ()
    unplayable = (Quarantined, *lasting)
    tried = any(not any(map(failure.ended_by, unplayable)) for failure in failures)
    if tried and not any(group.trajectories for group in groups):
        if failures[0].ended_by(PromptTooLong):
            raise AllFailed(f"all {message}", failures)
        sources = {"generate": "engine", "agent": "agent program", OF_JUDGE: "judge"}
        source = sources.get(failures[0].where, "environment (`arpo check-env` helps)")
        raise AllFailed(f"all {message}. Fix the {source}, then run the same command again", failures)
    display.note(message)
