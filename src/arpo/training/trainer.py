"""The training loop: rollouts, replay, advantages, update, new weights; then it is written down.

What every run has, online or offline, is `run`. Here is also the door to both: `arpo train`.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from arpo.algorithms.replay import ReplayBuffer
from arpo.algorithms.rewards import reward
from arpo.algorithms.samples import GroupStats, Updates, samples_of, split_by_signal
from arpo.config import Config
from arpo.evaluation.evaluate import tell_failures
from arpo.learner.base import Batch, Metrics
from arpo.reporting.display import Display, open_display
from arpo.storage.run_folder import RunFolder
from arpo.training.build import curriculum_of
from arpo.training.export import export_model
from arpo.training.offline import OfflineTrainer
from arpo.training.run import Progress, Run, claim, stops_gently
from arpo.types import Group, Task

MODEL = "model"


class Trainer(Run):
    """The online loop: it learns from what it plays."""

    def __init__(self, config: Config, store: RunFolder, display: Display) -> None:
        self.curriculum = curriculum_of(config)
        self.replay = ReplayBuffer(config.replay)
        # What the replay buffers of the checkpoints on the disk name: pruning leaves it alone.
        self._named: deque[set[str]] = deque(maxlen=config.store.keep_checkpoints)
        groups = {"total": 0, "without_signal": 0, "rescued": 0}
        super().__init__(config, store, display, Progress(groups=groups))

    async def train(self) -> bool:
        """Go on until every epoch is done, or until asked to stop; whether it is done."""
        await self._begin()
        while self.progress.tasks < self._total_tasks and not self.stopping:
            played = await self._rollout()
            groups = self.replay.rescue(played, self._rng(), self.learner.weights().version)
            updates, stats = self._samples(groups)
            metrics = await self._learn(Batch(updates=updates))
            await self._finish_batch(played, groups, stats, metrics)
        return self.progress.tasks >= self._total_tasks

    def _show(self) -> None:
        total = self._total_tasks * self.config.rollout.group_size
        self.display.begin("training", total, self.progress.episodes)

    @property
    def _total_tasks(self) -> int:
        return self.config.train.epochs * len(self.sets["train"])

    def _rng(self) -> Random:
        return Random(f"replay/{self.config.run.seed}/{self.progress.batch}")

    def _take_tasks(self, count: int) -> list[Task]:
        """The next tasks of the epochs, each epoch in an order of its own."""
        train, start = self.sets["train"], self.progress.tasks
        end = min(start + count, self._total_tasks)
        epochs = {place // len(train) for place in range(start, end)}
        orders = {epoch: self.curriculum.order(train, self.config.run.seed, epoch) for epoch in epochs}
        self.progress.tasks = end
        return [orders[place // len(train)][place % len(train)] for place in range(start, end)]

    async def _rollout(self) -> list[Group]:
        """One batch of groups; with dynamic sampling, further ones for those without signal."""
        settings = self.config.train
        groups: list[Group] = []
        for attempt in range(settings.dynamic_attempts + 1 if settings.dynamic_sampling else 1):
            tasks = self._take_tasks(settings.tasks_per_batch - len(self._trained(groups)))
            if not tasks:
                break
            first = attempt * settings.tasks_per_batch
            with self.timing.stage("rollout"):
                fresh = await self.scheduler.run(
                    f"batch{self.progress.batch}",
                    list(enumerate(tasks, first)),
                    lambda *_: self.display.episode_done(),
                )
            self._write_down(fresh)
            groups += fresh
        return groups

    def _trained(self, groups: Sequence[Group]) -> Sequence[Group]:
        """The groups that an update averages over: with dynamic sampling, those with signal."""
        dynamic = self.config.train.dynamic_sampling
        return split_by_signal(groups, self.config.loss)[0] if dynamic else groups

    def _samples(self, groups: Sequence[Group]) -> tuple[Updates, GroupStats]:
        """The updates of the groups that are trained, and the counts of all of them."""
        rollout = self.config.rollout
        of = partial(
            samples_of,
            loss=self.config.loss,
            tasks_per_update=self.config.train.tasks_per_update,
            token_budget=rollout.max_steps * rollout.max_answer_tokens,
            success=self.config.replay.threshold,
        )
        return of(self._trained(groups))[0], of(groups)[1]

    def _write_down(self, groups: Sequence[Group]) -> None:
        for group in groups:
            for trajectory in group.trajectories:
                self.store.add_trajectory(trajectory)
            for failure in group.failures:
                self.store.add_failure(failure)
        self.progress.episodes += sum(len(group.trajectories) for group in groups)
        self.progress.failures += sum(len(group.failures) for group in groups)
        tell_failures(groups, self.display)

    async def _finish_batch(
        self, played: Sequence[Group], groups: Sequence[Group], stats: GroupStats, learned: Metrics
    ) -> None:
        """Count what was played, and end the batch with it."""
        progress = self.progress
        progress.batch += 1
        for name in progress.groups:
            progress.groups[name] += getattr(stats, name)
        await self._end_batch(
            {**self._batch_metrics(played, groups, stats), **learned},
            played=sum(len(group.trajectories) for group in played),
            done=progress.tasks >= self._total_tasks,
        )

    def _batch_metrics(
        self, played: Sequence[Group], groups: Sequence[Group], stats: GroupStats
    ) -> dict[str, float]:
        """What was played, the episodes that replay then replaced included; and what became of it."""
        fresh = [trajectory for group in played for trajectory in group.trajectories]
        ages = [rescue.age for group in groups for rescue in group.rescues]
        weight = self.config.loss.format_weight
        return {
            "episodes": self.progress.episodes,
            "failures": self.progress.failures,
            "success": _mean(trajectory.score >= self.config.replay.threshold for trajectory in fresh),
            "reward": _mean(reward(trajectory, weight) for trajectory in fresh),
            "steps": _mean(len(trajectory.turns) for trajectory in fresh),
            "malformed": _mean(trajectory.malformed for trajectory in fresh),
            **{("groups" if name == "total" else name): count for name, count in asdict(stats).items()},
            "replay_age": _mean(ages) if ages else 0.0,
            "replay_size": sum(map(len, self.replay.state().values())),
        }

    def _state(self) -> dict[str, Any]:
        return {"replay": self.replay.state()}

    def _save(self) -> None:
        """Besides, free the screenshots that no replay buffer on the disk needs, where it is time."""
        super()._save()
        self._named.append(_names(self.replay.state()))
        every = self.config.store.prune_every
        if every and self.progress.batch % every == 0:
            self.store.prune(set().union(*self._named))

    def _restore(self, state: Mapping[str, Any]) -> None:
        stored = [episode for episodes in state["replay"].values() for episode in episodes]
        self.replay.restore(map(self.store.load_trajectory, stored))
        self._named.append(set(stored))
        epochs = self.progress.tasks / len(self.sets["train"])
        self._refuse_less("train.epochs", epochs, self.config.train.epochs)


def _names(replay: Mapping[str, Sequence[str]]) -> set[str]:
    return {episode for stored in replay.values() for episode in stored}


def _mean(values: Iterable[float]) -> float:
    """Of nothing it is no number: a batch that could not be carried out has no success, not one of 0."""
    numbers = [float(value) for value in values]
    return fmean(numbers) if numbers else math.nan


def open_run(config: Config, store: RunFolder, display: Display) -> Trainer | OfflineTrainer:
    """The loop of the recipe's method."""
    loop = Trainer if config.train.method == "online" else OfflineTrainer
    return loop(config, store, display)


def run_training(config: Config) -> int:
    """`arpo train`: begin the run in run.dir or go on with it, and leave its summary, report and model."""
    store = RunFolder(Path(config.run.dir))
    display = open_display(sys.stdout)
    try:
        claim(store, config)
        trainer = open_run(config, store, display)
        store.drop_summary()
        store.write_recipe(config)

        def stop() -> None:
            trainer.stopping = True
            display.note("finishing this batch, then saving; Ctrl-C again to stop at once")

        with stops_gently(stop), closing(trainer.tracker), closing(trainer.learner):
            done = asyncio.run(trainer.train())
        if not done:
            display.note(f"saved after batch {trainer.progress.batch}; the same command goes on from there")
            return 130
        _finish(trainer, display)
        return 0
    finally:
        display.close()
        store.close()


def _finish(trainer: Trainer | OfflineTrainer, display: Display) -> None:
    """The summary, as a file and on the screen, and the model as others load it."""
    folder = trainer.store.folder
    summary = trainer.summary()
    trainer.store.write_summary(summary)
    display.summary(summary)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    export_model(folder, folder / MODEL, trainer.config.model.dtype, merged=True)
    display.note(f"model:  {folder / MODEL}")
