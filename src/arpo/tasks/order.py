"""The sequence of all training tasks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Protocol

from arpo.config import Config
from arpo.envs.desk.fresh import FreshTasks
from arpo.tasks.curriculum import Curriculum, PluginCurriculum, epoch_order
from arpo.tasks.family_signal import FamilySignal
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
        self._orders: dict[int, Sequence[Task]] = {}  # by epoch, of the last `take`
        self.total = config.planned_tasks(len(tasks))

    def take(self, start: int, count: int) -> list[Task]:
        size, end = len(self._tasks), min(start + count, self.total)
        epochs = sorted({index // size for index in range(start, end)})
        self._orders = {epoch: self._orders.get(epoch) or self._order(epoch) for epoch in epochs}
        return [self._orders[index // size][index % size] for index in range(start, end)]

    def _order(self, epoch: int) -> Sequence[Task]:
        return self._curriculum.order(self._tasks, self._seed, epoch)


class FreshOrder:
    """Tasks of desk:fresh: a new one each time, or tasks.distinct of them in epochs.

    A task takes some milliseconds to make, so a thread makes the next ones while others are played. `signal`
    decides which goal families come next; None: all equally often. With it, tasks are made when they are
    taken, because they depend on the groups before them.
    """

    def __init__(self, config: Config, tasks: FreshTasks, signal: FamilySignal | None) -> None:
        self._tasks, self._seed = tasks, config.run.seed
        self._weight = signal.weight if signal else None
        self._ahead: dict[int, Future[Task]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tasks")
        self.total = config.planned_tasks(len(tasks))

    def take(self, start: int, count: int) -> list[Task]:
        visits = range(start, min(start + count, self.total))
        tasks = [self._task(visit) for visit in visits]
        if self._weight is None:
            for visit in range(visits.stop, min(visits.stop + len(visits), self.total)):
                if visit not in self._ahead:
                    self._ahead[visit] = self._thread.submit(self._make, visit)
        return tasks

    def _task(self, visit: int) -> Task:
        ahead = self._ahead.pop(visit, None)
        return ahead.result() if ahead else self._make(visit)

    def _make(self, visit: int) -> Task:
        if self._tasks.endless:
            return self._tasks.make(visit, self._weight)
        epoch, place = divmod(visit, len(self._tasks))
        return self._tasks[_shuffled(len(self._tasks), self._seed, epoch)[place]]


@lru_cache(maxsize=2)
def _shuffled(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    return epoch_order(range(size), seed, epoch)
