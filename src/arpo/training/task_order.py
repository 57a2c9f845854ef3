"""The sequence of all training tasks of a run: every epoch in its own order."""

from __future__ import annotations

from collections.abc import Sequence

from arpo.algorithms.curriculum import Curriculum, PluginCurriculum
from arpo.config import Config
from arpo.types import Task


class TaskOrder:
    """`total` tasks: train.epochs times the training tasks."""

    def __init__(
        self, config: Config, tasks: Sequence[Task], curriculum: Curriculum | PluginCurriculum
    ) -> None:
        self._tasks, self._curriculum, self._seed = tasks, curriculum, config.run.seed
        self.total = config.train.epochs * len(tasks)

    def take(self, start: int, count: int) -> list[Task]:
        """At most `count` tasks, beginning with number `start` of the run."""
        size, end = len(self._tasks), min(start + count, self.total)
        epochs = sorted({index // size for index in range(start, end)})
        orders = {epoch: self._curriculum.order(self._tasks, self._seed, epoch) for epoch in epochs}
        return [orders[index // size][index % size] for index in range(start, end)]
