"""The task filter and the order of tasks: which tasks are worth training on, and when each is played.

Pure: every draw is decided by (seed, epoch), so a resumed run needs no saved generator state.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Literal

from arpo.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How often the base model solved a task in screening."""

    successes: int
    rollouts: int

    @property
    def rate(self) -> float:
        """The share of successes, half a success among one more rollout added: 0 of 16 is not never."""
        return (self.successes + 0.5) / (self.rollouts + 1)


def keep(counts: Mapping[str, Count], *, drop_always: bool) -> dict[str, Count]:
    """The tasks that training can learn from: solved at least once and, by option, not every time."""
    return {
        task: count
        for task, count in counts.items()
        if count.successes >= 1 and not (drop_always and count.successes == count.rollouts)
    }


def epoch_order(tasks: Sequence[Task], seed: int, epoch: int) -> tuple[Task, ...]:
    """A shuffle that (seed, epoch) alone decides: a resumed run needs no generator's state."""
    order = list(tasks)
    _rng(seed, epoch).shuffle(order)
    return tuple(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """Which tasks each pass over them holds. Every pass has as many as there are tasks.

    none: each task once.
    middle: a task weighs p(1 − p) + 0.05, p being its rate in screening. Along the weights of the shuffled
        tasks, as many draws are made as there are tasks, at even steps from a random start: a task comes as
        often as its share of the weight says, rounded up or down. Of 16 rollouts, 8 weigh 0.3 and 16 or none
        0.079, so no task comes more than four times.
    easy_first: in the first third of the passes the easier half, in the second the easier three quarters,
        then all; shuffled and dealt over and over until the pass is full.
    """

    kind: Literal["none", "middle", "easy_first"]
    passes: int
    counts: Mapping[str, Count]

    def order(self, tasks: Sequence[Task], seed: int, epoch: int) -> tuple[Task, ...]:
        """The tasks of one pass, which (seed, epoch) alone decides; of easy_first, with `passes`."""
        match self.kind:
            case "none":
                return epoch_order(tasks, seed, epoch)
            case "middle":
                return self._middle(tasks, _rng(seed, epoch))
            case "easy_first":
                return self._easy_first(tasks, _rng(seed, epoch), epoch)

    def _middle(self, tasks: Sequence[Task], rng: Random) -> tuple[Task, ...]:
        order = list(tasks)
        rng.shuffle(order)
        rates = [self.counts[task.id].rate for task in order]
        reached = list(accumulate(rate * (1 - rate) + 0.05 for rate in rates))
        step, start = reached[-1] / len(order), rng.random()
        places = [bisect_right(reached, (start + draw) * step) for draw in range(len(order))]
        drawn = [order[min(place, len(order) - 1)] for place in places]  # the last sum may be rounded down
        rng.shuffle(drawn)
        return tuple(drawn)

    def _easy_first(self, tasks: Sequence[Task], rng: Random, epoch: int) -> tuple[Task, ...]:
        by_ease = sorted(tasks, key=lambda task: -self.counts[task.id].rate)
        share = (0.5, 0.75, 1.0)[min(2, 3 * epoch // self.passes)]
        part = by_ease[: math.ceil(share * len(by_ease))]
        dealt: list[Task] = []
        while len(dealt) < len(tasks):
            rng.shuffle(part)
            dealt += part
        return tuple(dealt[: len(tasks)])


def _rng(seed: int, epoch: int) -> Random:
    return Random(f"tasks/{seed}/{epoch}")
