"""The sequence of all training tasks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from arpo.algorithms.curriculum import Curriculum, PluginCurriculum, epoch_order
from arpo.algorithms.family_signal import FamilySignal
from arpo.config import Config
from arpo.envs.desk.fresh import FreshTasks
from arpo.types import Task

AnyCurriculum = Curriculum | PluginCurriculum | FamilySignal


class TaskOrder(Protocol):
    """`total` tasks, repeated ones included."""

    total: int

    def take(self, start: int, count: int) -> list[Task]:
        """At most `count` tasks, beginning with number `start` of the run."""
        ...


def open_order(config: Config, tasks: Sequence[Task], curriculum: AnyCurriculum) -> TaskOrder:
    if isinstance(tasks, FreshTasks):
        return FreshOrder(config, tasks, curriculum if isinstance(curriculum, FamilySignal) else None)
    assert not isinstance(curriculum, FamilySignal), "a list has no adaptive order"
    return ListOrder(config, tasks, curriculum)


class ListOrder:
    """Tasks of a list: every epoch in its own order."""

    def __init__(
        self, config: Config, tasks: Sequence[Task], curriculum: Curriculum | PluginCurriculum
    ) -> None:
        self._tasks, self._curriculum, self._seed = tasks, curriculum, config.run.seed
        self.total = config.planned_tasks(len(tasks))

    def take(self, start: int, count: int) -> list[Task]:
        size, end = len(self._tasks), min(start + count, self.total)
        epochs = sorted({index // size for index in range(start, end)})
        orders = {epoch: self._curriculum.order(self._tasks, self._seed, epoch) for epoch in epochs}
        return [orders[index // size][index % size] for index in range(start, end)]


class FreshOrder:
    """Tasks of desk:fresh: a new one each time, or tasks.distinct of them in epochs.

    `signal` decides which goal families come next; None: all equally often.
    """

    def __init__(self, config: Config, tasks: FreshTasks, signal: FamilySignal | None) -> None:
        self._tasks, self._seed = tasks, config.run.seed
        self._weight = signal.weight if signal else None
        self.total = config.planned_tasks(len(tasks))

    def take(self, start: int, count: int) -> list[Task]:
        visits = range(start, min(start + count, self.total))
        if self._tasks.endless:
            return [self._tasks.make(visit, self._weight) for visit in visits]
        size = len(self._tasks)
        orders = {epoch: epoch_order(range(size), self._seed, epoch) for epoch in {v // size for v in visits}}
        return [self._tasks[orders[visit // size][visit % size]] for visit in visits]
