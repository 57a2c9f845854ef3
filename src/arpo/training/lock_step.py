"""Lock step: one policy plays all groups of a batch, then the learner trains while nothing plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from arpo.algorithms.credit import Credit
from arpo.algorithms.samples import split_by_signal
from arpo.config import LossConfig, TrainConfig
from arpo.envs.quarantine import QuarantineState
from arpo.errors import Outage
from arpo.evaluation.scoring import report_failures
from arpo.storage.codec import BATCH
from arpo.tasks.order import TaskOrder
from arpo.training.checkpoints import Progress, State
from arpo.training.judged_scores import JudgedScores
from arpo.training.run import Run
from arpo.types import Group

DYNAMIC_ROUNDS = 4  # additional rounds of dynamic sampling per batch


class LockStep:
    """A source of batches. `GroupStream` is the other one."""

    def __init__(self, run: Run, order: TaskOrder, credit: Credit, scores: JudgedScores) -> None:
        self._run, self._order, self._credit, self._scores = run, order, credit, scores

    async def __aenter__(self) -> LockStep:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing plays between two batches."""

    async def next_batch(self) -> list[Group] | None:
        """The played groups of the next batch, stored and counted. None if the run shall stop.

        Raises Outage if no environment works.
        """
        if self._run.stopping:
            return None
        before, pool = replace(self._run.progress), self._run.scheduler.pool.state()
        try:
            return await self._rollout()
        except Outage:
            await self._abandon_batch(before, pool)
            if self._run.stopping:
                return None
            raise

    async def _rollout(self) -> list[Group]:
        """Play one batch of groups. Dynamic sampling adds groups for those without signal."""
        run, settings = self._run, self._run.config.train
        groups: list[Group] = []
        run.scheduler.pool.quarantine.begin_batch()
        for attempt in range(1 + DYNAMIC_ROUNDS if settings.dynamic_sampling else 1):
            missing = settings.tasks_per_batch - len(
                trained_groups(groups, run.config.loss, run.config.train, self._credit)
            )
            tasks = self._order.take(run.progress.tasks, missing)
            if not tasks:
                break
            run.progress.tasks += len(tasks)
            first = attempt * settings.tasks_per_batch
            with run.timing.stage("rollout"):
                fresh = await run.scheduler.run(
                    f"{BATCH}-{run.progress.batch + 1}",
                    list(enumerate(tasks, first)),
                    lambda *_: run.display.episode_done(),
                    on_screenshot=run.store.prepare,
                )
                fresh = await self._scores.judge(fresh)
            self._store(fresh)
            groups += fresh
        return groups

    def _store(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self._run.records.store_group(group)
            self._order.record(group.trajectories)
        self._run.progress.episodes += sum(len(group.trajectories) for group in groups)
        report_failures(groups, self._run.display, some_tasks=True)

    async def _abandon_batch(self, before: Progress, pool: QuarantineState) -> None:
        """Save the run as it was before the batch.

        If dynamic sampling has stored a part of the batch, the newest checkpoint stays the newest: the
        resumed run removes this part.
        """
        progress = self._run.progress
        progress.tasks = before.tasks
        self._run.scheduler.pool.restore(pool)
        stored = (progress.episodes, progress.failures) != (before.episodes, before.failures)
        if not stored and self._run.checkpoints.batch != progress.batch:
            await self._run.save()

    def trained(self) -> None:
        """The last batch is trained on, and the engine has the new weights."""

    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last batch beyond those of its groups."""
        return {}

    def state(self) -> dict[str, Any]:
        """Its part of a checkpoint, as JSON. Called when a checkpoint is written."""
        return {}

    def restore(self, state: State) -> None:
        """Continue from a checkpoint. Called before the first batch."""

    def waiting_episodes(self) -> set[str]:
        """Ids of stored episodes for a later batch."""
        return set()


def trained_groups(
    groups: Sequence[Group], loss: LossConfig, train: TrainConfig, credit: Credit
) -> Sequence[Group]:
    """The groups that fill a batch. Dynamic sampling drops those without signal."""
    return split_by_signal(groups, loss, credit)[0] if train.dynamic_sampling else groups
