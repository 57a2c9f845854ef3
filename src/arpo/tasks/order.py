"""The order of the training tasks of a run.

The tasks of a list come in epochs, each in an order of its own: shuffled, by difficulty (train.curriculum),
or as a plug-in decides. The tasks of desk:fresh are made when they are played. Every draw is decided by
(seed, epoch), so a resumed run needs no saved generator state.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Any, Protocol, TypeVar

from arpo.config import Config
from arpo.config.checks import shorten
from arpo.envs.desk.fresh import FreshTasks
from arpo.errors import UserError
from arpo.plugins import Plugin, open_plugin
from arpo.tasks.lists import load_counts
from arpo.tasks.screened import Count
from arpo.types import Task

_T = TypeVar("_T")


class Outcome(Protocol):
    """An episode in memory or on disk."""

    @property
    def task_id(self) -> str: ...

    @property
    def score(self) -> float: ...


def open_order(config: Config, tasks: Sequence[Task]) -> TaskOrder:
    """The order of tasks.train, plugins.curriculum and train.curriculum."""
    seed, total = config.run.seed, config.planned_tasks(len(tasks))
    if isinstance(tasks, FreshTasks):
        return FreshOrder(tasks, seed, total)
    if plugin := open_plugin(config.plugins, "curriculum"):
        return PluginOrder(tasks, seed, total, plugin)
    if config.train.curriculum == "middle":
        return MiddleOrder(tasks, seed, total, required_counts(config))
    return TaskOrder(tasks, seed, total)


def required_counts(config: Config) -> dict[str, Count]:
    """The screening counts of the training tasks. Raises UserError if there are none."""
    source = config.tasks.train
    if counts := load_counts(source, config.tasks.examples):
        return counts
    raise UserError(
        f"train.curriculum = {config.train.curriculum!r}: {source} has no screening counts. Create a list "
        f"with counts: `arpo screen --tasks {source} --out kept.json`, then set tasks.train to it"
    )


def epoch_order(tasks: Sequence[_T], seed: int, epoch: int) -> tuple[_T, ...]:
    """A shuffle decided by (seed, epoch)."""
    order = list(tasks)
    _rng(seed, epoch).shuffle(order)
    return tuple(order)


class TaskOrder:
    """Each task of a list once per epoch, shuffled; `total` tasks in all, repeated ones included."""

    def __init__(self, tasks: Sequence[Task], seed: int, total: int) -> None:
        self._tasks, self._seed, self.total = tasks, seed, total
        self._epochs: dict[int, Sequence[Task]] = {}  # of the last `take`

    def take(self, start: int, count: int) -> list[Task]:
        """At most `count` tasks, beginning with number `start` of the run."""
        size, end = len(self._tasks), min(start + count, self.total)
        epochs = sorted({index // size for index in range(start, end)})
        self._epochs = {epoch: self._epochs.get(epoch) or self.epoch(epoch) for epoch in epochs}
        return [self._epochs[index // size][index % size] for index in range(start, end)]

    def epoch(self, epoch: int) -> Sequence[Task]:
        """The tasks of one epoch: as many as there are tasks."""
        return epoch_order(self._tasks, self._seed, epoch)

    def record(self, played: Iterable[Outcome]) -> None:
        """Learn from the episodes of a finished group. Only a plug-in does."""

    def state(self) -> dict[str, Any]:
        """The part of a checkpoint from which `restore` continues."""
        return {}

    def restore(self, orders: Iterable[tuple[int, Sequence[str]]], played: Iterable[Outcome]) -> None:
        """Continue from the `orders` of a checkpoint. `played` are all training episodes before it."""


class MiddleOrder(TaskOrder):
    """Tasks of medium difficulty more often: systematic sampling with weight p(1 − p) + 0.05.

    p is the screening rate. A task occurs in proportion to its weight, rounded up or down. With 16 rollouts,
    8 successes weigh 0.3, and 0 or 16 successes weigh 0.079. So no task occurs more than four times.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, total: int, counts: Mapping[str, Count]) -> None:
        super().__init__(tasks, seed, total)
        self._counts = counts

    def epoch(self, epoch: int) -> Sequence[Task]:
        rng, order = _rng(self._seed, epoch), list(self._tasks)
        rng.shuffle(order)
        rates = [self._counts[task.id].rate for task in order]
        reached = list(accumulate(rate * (1 - rate) + 0.05 for rate in rates))
        step, start = reached[-1] / len(order), rng.random()
        indices = [bisect_right(reached, (start + draw) * step) for draw in range(len(order))]
        drawn = [order[min(index, len(order) - 1)] for index in indices]  # rounding may exceed the last
        rng.shuffle(drawn)
        return drawn


class PluginOrder(TaskOrder):
    """The order that a plug-in decides, at the start of each epoch, from the scores so far.

    The order of an epoch is part of every checkpoint: a resumed run has seen more episodes, or the plug-in
    may be random.
    """

    def __init__(self, tasks: Sequence[Task], seed: int, total: int, plugin: Plugin) -> None:
        super().__init__(tasks, seed, total)
        self._plugin = plugin
        self._history: dict[str, list[float]] = {}
        self._orders: dict[int, list[str]] = {}  # task ids by epoch, for the current epoch and later ones

    def epoch(self, epoch: int) -> Sequence[Task]:
        if epoch not in self._orders:
            history = {task.id: tuple(self._history.get(task.id, ())) for task in self._tasks}
            ordered = self._plugin(tuple(self._tasks), epoch, history, _rng(self._seed, epoch))
            self._orders[epoch] = self._checked(ordered, epoch)
        self._orders = {other: ids for other, ids in self._orders.items() if other >= epoch}
        by_id = {task.id: task for task in self._tasks}
        return [by_id[name] for name in self._orders[epoch]]

    def record(self, played: Iterable[Outcome]) -> None:
        for episode in played:
            self._history.setdefault(episode.task_id, []).append(episode.score)

    def state(self) -> dict[str, Any]:
        return {"orders": [[epoch, ids] for epoch, ids in self._orders.items()]}

    def restore(self, orders: Iterable[tuple[int, Sequence[str]]], played: Iterable[Outcome]) -> None:
        self._orders = {epoch: list(ids) for epoch, ids in orders}
        self._history = {}
        self.record(played)

    def _checked(self, ordered: object, epoch: int) -> list[str]:
        known = {task.id for task in self._tasks}
        if not isinstance(ordered, Sequence) or not all(isinstance(task, Task) for task in ordered):
            raise self._plugin.error(
                f"returned {shorten(ordered)} for epoch {epoch}, must be a list of tasks"
            )
        if len(ordered) != len(self._tasks):
            raise self._plugin.error(
                f"returned {len(ordered)} tasks for epoch {epoch}, must be {len(self._tasks)}, the number of "
                "training tasks; a task may occur several times"
            )
        if others := [task.id for task in ordered if task.id not in known]:
            raise self._plugin.error(f"returned {others[0]!r} for epoch {epoch}, which is no training task")
        return [task.id for task in ordered]


class FreshOrder(TaskOrder):
    """Tasks of desk:fresh: a new one each time, or tasks.distinct of them in epochs.

    A task takes some milliseconds to make, so a thread makes the next ones while others are played.
    """

    def __init__(self, tasks: FreshTasks, seed: int, total: int) -> None:
        super().__init__(tasks, seed, total)
        self._endless = tasks.endless
        self._ahead: dict[int, Future[Task]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tasks")

    def take(self, start: int, count: int) -> list[Task]:
        visits = range(start, min(start + count, self.total))
        tasks = [self._task(visit) for visit in visits]
        for visit in range(visits.stop, min(visits.stop + len(visits), self.total)):
            if visit not in self._ahead:
                self._ahead[visit] = self._thread.submit(self._make, visit)
        return tasks

    def _task(self, visit: int) -> Task:
        ahead = self._ahead.pop(visit, None)
        return ahead.result() if ahead else self._make(visit)

    def _make(self, visit: int) -> Task:
        if self._endless:
            return self._tasks[visit]
        epoch, place = divmod(visit, len(self._tasks))
        return self._tasks[_shuffled(len(self._tasks), self._seed, epoch)[place]]


@lru_cache(maxsize=2)
def _shuffled(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    return epoch_order(range(size), seed, epoch)


def _rng(seed: int, epoch: int) -> Random:
    return Random(f"tasks/{seed}/{epoch}")
