"""The task filter and the order of tasks: which tasks are worth training on, and when each is played.

Pure: every draw is decided by (seed, epoch), so a resumed run needs no saved generator state.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from random import Random
from typing import Any, Literal, Protocol, TypeVar

from arpo.config.checks import shorten
from arpo.plugins import Plugin
from arpo.types import Task

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Successes of the base model on one task in screening."""

    successes: int
    rollouts: int

    @property
    def rate(self) -> float:
        """Smoothed success rate, (successes + 0.5) / (rollouts + 1): never exactly 0 or 1."""
        return (self.successes + 0.5) / (self.rollouts + 1)


def learnable(counts: Mapping[str, Count], *, drop_always: bool) -> dict[str, Count]:
    """The tasks solved at least once and, with `drop_always`, not every time."""
    return {
        task: count
        for task, count in counts.items()
        if count.successes >= 1 and not (drop_always and count.successes == count.rollouts)
    }


def middle(counts: Mapping[str, Count], number: int) -> dict[str, Count]:
    """The `number` tasks with success rates nearest to 1/2, in the order of `counts`.

    Tasks solved never or always are left out, so there may be fewer. Of two tasks at the same distance, the
    harder one is taken: its rate rises through 1/2 in training. Then the earlier one. Example: of 0, 1, 2, 3
    and 4 successes in 4 rollouts, the two nearest are 2 and 1.
    """

    def distance(task: str) -> tuple[Fraction, Fraction]:
        rate = Fraction(counts[task].successes, counts[task].rollouts)
        return abs(rate - Fraction(1, 2)), rate

    sometimes = [task for task, count in counts.items() if 0 < count.successes < count.rollouts]
    nearest = set(sorted(sometimes, key=distance)[:number])
    return {task: count for task, count in counts.items() if task in nearest}


def epoch_order(tasks: Sequence[_T], seed: int, epoch: int) -> tuple[_T, ...]:
    """A shuffle decided by (seed, epoch)."""
    order = list(tasks)
    _rng(seed, epoch).shuffle(order)
    return tuple(order)


class Outcome(Protocol):
    """An episode in memory or on disk."""

    @property
    def task_id(self) -> str: ...

    @property
    def score(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """The tasks of each epoch. Every epoch has as many entries as there are tasks.

    none: each task once.
    middle: systematic sampling with weight p(1 − p) + 0.05, where p is the screening rate. A task occurs in
        proportion to its weight, rounded up or down. With 16 rollouts, 8 successes weigh 0.3, and 0 or 16
        successes weigh 0.079. So no task occurs more than four times.
    easy_first: the easier half of the tasks in the first third of the epochs, the easier three quarters in
        the second third, then all. The tasks are shuffled and repeated until the epoch is full.

    The run has `passes` epochs; if `total` is not 0, it has so many tasks in all instead.
    """

    kind: Literal["none", "middle", "easy_first"]
    passes: int
    counts: Mapping[str, Count]
    total: int = 0

    def order(self, tasks: Sequence[Task], seed: int, epoch: int) -> tuple[Task, ...]:
        """The tasks of one epoch, decided by (seed, epoch), for easy_first also by the number of epochs."""
        match self.kind:
            case "none":
                return epoch_order(tasks, seed, epoch)
            case "middle":
                return self._middle(tasks, _rng(seed, epoch))
            case "easy_first":
                return self._easy_first(tasks, _rng(seed, epoch), epoch)

    def record(self, played: Iterable[Outcome]) -> None:
        """The order does not depend on played episodes."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any], played: Iterable[Outcome]) -> None: ...

    def _middle(self, tasks: Sequence[Task], rng: Random) -> tuple[Task, ...]:
        order = list(tasks)
        rng.shuffle(order)
        rates = [self.counts[task.id].rate for task in order]
        reached = list(accumulate(rate * (1 - rate) + 0.05 for rate in rates))
        step, start = reached[-1] / len(order), rng.random()
        indices = [bisect_right(reached, (start + draw) * step) for draw in range(len(order))]
        drawn = [order[min(index, len(order) - 1)] for index in indices]  # rounding may exceed the last
        rng.shuffle(drawn)
        return tuple(drawn)

    def _easy_first(self, tasks: Sequence[Task], rng: Random, epoch: int) -> tuple[Task, ...]:
        by_ease = sorted(tasks, key=lambda task: -self.counts[task.id].rate)
        passes = math.ceil(self.total / len(tasks)) or self.passes
        share = (0.5, 0.75, 1.0)[min(2, 3 * epoch // passes)]
        part = by_ease[: math.ceil(share * len(by_ease))]
        dealt: list[Task] = []
        while len(dealt) < len(tasks):
            rng.shuffle(part)
            dealt += part
        return tuple(dealt[: len(tasks)])


class PluginCurriculum:
    """The order that a plug-in decides, at the start of each epoch, from the scores so far.

    The order of an epoch is part of every checkpoint: a resumed run has seen more episodes, or the plug-in
    may be random.
    """

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self._history: dict[str, list[float]] = {}
        self._orders: dict[int, list[str]] = {}  # task ids by epoch, for the current epoch and later ones

    def order(self, tasks: Sequence[Task], seed: int, epoch: int) -> tuple[Task, ...]:
        if epoch not in self._orders:
            history = {task.id: tuple(self._history.get(task.id, ())) for task in tasks}
            ordered = self._plugin(tuple(tasks), epoch, history, _rng(seed, epoch))
            self._orders[epoch] = self._checked(ordered, tasks, epoch)
        self._orders = {other: ids for other, ids in self._orders.items() if other >= epoch}
        by_id = {task.id: task for task in tasks}
        return tuple(by_id[name] for name in self._orders[epoch])

    def record(self, played: Iterable[Outcome]) -> None:
        """Add the episodes to the history."""
        for episode in played:
            self._history.setdefault(episode.task_id, []).append(episode.score)

    def state(self) -> dict[str, Any]:
        return {"orders": [[epoch, ids] for epoch, ids in self._orders.items()]}

    def restore(self, state: Mapping[str, Any], played: Iterable[Outcome]) -> None:
        self._orders = {epoch: list(ids) for epoch, ids in state["orders"]}
        self._history = {}
        self.record(played)

    def _checked(self, ordered: object, tasks: Sequence[Task], epoch: int) -> list[str]:
        known = {task.id for task in tasks}
        if not isinstance(ordered, Sequence) or not all(isinstance(task, Task) for task in ordered):
            raise self._plugin.error(
                f"returned {shorten(ordered)} for epoch {epoch}, must be a list of tasks"
            )
        if len(ordered) != len(tasks):
            raise self._plugin.error(
                f"returned {len(ordered)} tasks for epoch {epoch}, must be {len(tasks)}, the number of "
                "training tasks; a task may occur several times"
            )
        if others := [task.id for task in ordered if task.id not in known]:
            raise self._plugin.error(f"returned {others[0]!r} for epoch {epoch}, which is no training task")
        return [task.id for task in ordered]


def _rng(seed: int, epoch: int) -> Random:
    return Random(f"tasks/{seed}/{epoch}")
