"""Tasks set aside for some batches, because their episodes failed again and again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

BATCHES_ASIDE = 4  # before the first trial of a task that was set aside


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineState:
    """By task id: failures in a row; times set aside, and the first batch of the next trial."""

    batch: int
    failures: dict[str, int]
    aside: dict[str, tuple[int, int]]


class Quarantine:
    """Counts the failures of tasks. After `after` in a row, a task is set aside for `batches` batches.

    Then the task gets one trial. If it fails, the task is set aside again, for twice as many batches.
    Failures of concurrent episodes of a task count once: they usually have one cause.

        seen = quarantine.failures(task.id)  # when the episode begins
        quarantine.failed(task.id, seen)  # when it fails
    """

    def __init__(self, after: int, batches: int) -> None:
        self._after, self._batches = after, batches
        self._failures: Counter[str] = Counter()  # in a row
        self._aside: dict[str, tuple[int, int]] = {}  # times set aside so far, first batch of the next trial
        self._batch = 0

    @property
    def tasks(self) -> frozenset[str]:
        """Ids of the tasks set aside."""
        return frozenset(task for task, failed in self._failures.items() if failed >= self._after)

    def __contains__(self, task_id: str) -> bool:
        return self._failures[task_id] >= self._after

    def failures(self, task_id: str) -> int:
        """The number of failures in a row, for `failed`."""
        return self._failures[task_id]

    def failed(self, task_id: str, seen: int) -> None:
        """Count a failure, unless an episode of the task ended since `failures` returned `seen`."""
        if self._failures[task_id] != seen:
            return
        self._failures[task_id] += 1
        if self._failures[task_id] == self._after:
            times = self._aside.get(task_id, (0, 0))[0]
            self._aside[task_id] = times + 1, self._batch + self._batches * 2**times

    def succeeded(self, task_id: str) -> None:
        self._failures.pop(task_id, None)
        self._aside.pop(task_id, None)

    def begin_batch(self) -> None:
        """The tasks whose time is over get a trial."""
        self._batch += 1
        self._give_trials(task for task, (_, until) in self._aside.items() if until <= self._batch)

    def begin_evaluation(self) -> None:
        """Every task gets a trial: evaluations should cover the same tasks."""
        self._give_trials(self._aside)

    def _give_trials(self, tasks: Iterable[str]) -> None:
        for task in tasks:
            self._failures[task] = min(self._failures[task], self._after - 1)

    def state(self) -> QuarantineState:
        """The counts, for a checkpoint."""
        failures = {task: count for task, count in self._failures.items() if count}
        return QuarantineState(batch=self._batch, failures=failures, aside=dict(self._aside))

    def restore(self, state: QuarantineState) -> None:
        self._batch = state.batch
        self._failures = Counter(state.failures)
        self._aside = dict(state.aside)
