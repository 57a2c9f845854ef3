"""The online training loop: rollouts, replay, advantages, updates, new weights (`arpo train`)."""

from __future__ import annotations

import math
import shutil
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from arpo.algorithms.replay import ReplayBuffer, replay_rng
from arpo.algorithms.samples import GroupStats, build_updates, count_groups, split_by_signal
from arpo.algorithms.schedules import decay
from arpo.config import Config
from arpo.engines.factory import require_tokens
from arpo.errors import Outage, UserError
from arpo.evaluation.scoring import report_failures
from arpo.interrupts import INTERRUPTED, run_interruptibly
from arpo.learner.base import Batch, Metrics
from arpo.models.hub import pin_model
from arpo.plugins import check_plugins
from arpo.reporting.display import Display, open_display
from arpo.rollout.watched_env import WatchedEnv
from arpo.storage.codec import BATCH, EVALUATED
from arpo.storage.run_folder import RunFolder
from arpo.training.build import open_credit, open_curriculum
from arpo.training.export import export_model
from arpo.training.failed_episodes import report_failed_episodes
from arpo.training.offline import OfflineTrainer
from arpo.training.run import Progress, Run, check_folder
from arpo.training.stored_tokens import load_checked, load_outline
from arpo.types import Group, Task

MODEL = "model"


class Trainer:
    """The online loop. It learns from the episodes that it plays."""

    def __init__(self, config: Config, store: RunFolder, display: Display) -> None:
        self.config = config
        self.curriculum = open_curriculum(config)
        self.replay = ReplayBuffer(config.replay, lambda name: load_checked(store, name, self.run.player))
        # Episodes in the replay buffers of the checkpoints on disk. Pruning keeps their screenshots.
        self._replayable: deque[set[str]] = deque(maxlen=config.store.keep_checkpoints)
        groups = {"total": 0, "without_signal": 0, "rescued": 0}
        self.run = Run(config, store, display, Progress(groups=groups))
        self.credit = open_credit(config, self.run.sets["train"])
        if self.run.restored is not None:
            self._restore(self.run.restored)

    async def train(self) -> bool:
        """Train until all epochs are done or the run is asked to stop. Returns True if all are done."""
        await self.run.begin(self)
        while not self.done and not self.run.stopping:
            before, pool = replace(self.run.progress), self.run.scheduler.pool.state()
            try:
                played = await self._rollout()
            except Outage:
                self._abandon_batch(before, pool)
                if self.run.stopping:
                    break
                raise
            groups = self.replay.rescue(played, self._rng(), self.run.learner.weights().version)
            metrics = self._check_engine(await self.run.learn(self._batch(groups, before.tasks)))
            await self._end_batch(played, groups, metrics)
        return self.done and self.run.unfinished is None

    def _abandon_batch(self, before: Progress, pool: Mapping[str, Any]) -> None:
        """Save the run as it was before the batch.

        If dynamic sampling has stored a part of the batch, the newest checkpoint stays the newest: the
        resumed run removes this part.
        """
        progress = self.run.progress
        progress.tasks = before.tasks
        self.run.scheduler.pool.restore(pool)
        if (progress.episodes, progress.failures) == (before.episodes, before.failures):
            self.run.save_behind(self)

    def show(self) -> None:
        total = self._total_tasks * self.config.rollout.group_size
        self.run.display.begin("training", total, self.run.progress.episodes)

    @property
    def done(self) -> bool:
        return self.run.progress.tasks >= self._total_tasks

    @property
    def _total_tasks(self) -> int:
        return self.config.train.epochs * len(self.run.sets["train"])

    def _rng(self) -> Random:
        return replay_rng(self.config.run.seed, self.run.progress.batch)

    def _take_tasks(self, count: int) -> list[Task]:
        """The next `count` tasks. Each epoch has its own order."""
        train, start = self.run.sets["train"], self.run.progress.tasks
        end = min(start + count, self._total_tasks)
        epochs = {index // len(train) for index in range(start, end)}
        orders = {
            epoch: self.curriculum.order(train, self.config.run.seed, epoch) for epoch in sorted(epochs)
        }
        self.run.progress.tasks = end
        return [orders[index // len(train)][index % len(train)] for index in range(start, end)]

    async def _rollout(self) -> list[Group]:
        """Play one batch of groups. Dynamic sampling adds groups for those without signal."""
        settings = self.config.train
        groups: list[Group] = []
        self.run.scheduler.pool.quarantine.begin_batch()
        for attempt in range(settings.dynamic_attempts + 1 if settings.dynamic_sampling else 1):
            tasks = self._take_tasks(settings.tasks_per_batch - len(self._trained(groups)))
            if not tasks:
                break
            first = attempt * settings.tasks_per_batch
            with self.run.timing.stage("rollout"):
                fresh = await self.run.scheduler.run(
                    f"{BATCH}{self.run.progress.batch}",
                    list(enumerate(tasks, first)),
                    lambda *_: self.run.display.episode_done(),
                    wrap=lambda env: WatchedEnv(env, self.run.store.prepare),
                )
            self._store(fresh)
            groups += fresh
        return groups

    def _trained(self, groups: Sequence[Group]) -> Sequence[Group]:
        """The groups that an update averages over. Dynamic sampling drops groups without signal."""
        dynamic = self.config.train.dynamic_sampling
        return split_by_signal(groups, self.config.loss, self.credit)[0] if dynamic else groups

    def _batch(self, groups: Sequence[Group], began: int) -> Batch:
        """The updates of the batch whose first task is number `began` of the run."""
        rollout = self.config.rollout
        updates = build_updates(
            self._trained(groups),
            self.config.loss,
            tasks_per_update=self.config.train.tasks_per_update,
            token_budget=rollout.max_steps * rollout.max_answer_tokens,
            credit=self.credit,
        )
        return Batch(updates=updates, lr_scales=self._lr_scales(began, len(updates)))

    def _lr_scales(self, began: int, updates: int) -> tuple[float, ...]:
        """Factors of the learning rate. Progress is measured in tasks: their total is known in advance."""
        optim, per_update = self.config.optim, self.config.train.tasks_per_update
        played = self.run.progress.tasks - began  # with dynamic sampling more than the updates contain
        return tuple(
            decay(
                optim.schedule,
                done=(began + played * index / updates) / per_update,
                total=self._total_tasks / per_update,
                warmup=optim.warmup_updates,
            )
            for index in range(updates)
        )

    def _check_engine(self, metrics: Metrics) -> Metrics:
        """Report a batch in which engine and learner disagree about the probabilities of the same tokens."""
        found, threshold = metrics["engine_kl"], self.config.train.engine_kl_alarm
        if found <= threshold:
            return metrics
        untrained = "untrained" in metrics
        self.run.progress.untrained += untrained
        done = (
            "was not trained on" if untrained else "was trained on: train.engine_kl_skip = true prevents it"
        )
        self.run.display.note(
            f"batch {self.run.progress.batch + 1}: engine and learner disagree, engine_kl is {found:.2g}, "
            f"above train.engine_kl_alarm = {threshold:g}. The batch {done}. If this continues, stop the run"
        )
        return {**metrics, "engine_alarm": 1.0}

    def _store(self, groups: Sequence[Group]) -> None:
        for group in groups:
            for trajectory in group.trajectories:
                self.run.store.add_trajectory(trajectory)
            for failure in group.failures:
                self.run.store.add_failure(failure)
            self.curriculum.record(group.trajectories)
        self.run.progress.episodes += sum(len(group.trajectories) for group in groups)
        self.run.progress.failures += sum(len(group.failures) for group in groups)
        report_failures(groups, self.run.display, some_tasks=True)

    async def _end_batch(self, played: Sequence[Group], groups: Sequence[Group], learned: Metrics) -> None:
        progress, threshold = self.run.progress, self.config.replay.threshold
        stats = count_groups(groups, self.config.loss, success=threshold, credit=self.credit)
        progress.batch += 1
        for name in progress.groups:
            progress.groups[name] += getattr(stats, name)
        await self.run.end_batch(
            self,
            {**self._batch_metrics(played, groups, stats), **learned},
            groups,
            played=sum(len(group.trajectories) for group in played),
        )

    def _batch_metrics(
        self, played: Sequence[Group], groups: Sequence[Group], stats: GroupStats
    ) -> dict[str, float]:
        """Metrics of the played episodes, including those that replay replaced, and of the groups."""
        fresh = [trajectory for group in played for trajectory in group.trajectories]
        ages = [rescue.age for group in groups for rescue in group.rescues]
        return {
            "episodes": self.run.progress.episodes,
            "failures": self.run.progress.failures,
            "success": _mean(trajectory.score >= self.config.replay.threshold for trajectory in fresh),
            "reward": _mean(self.credit.reward(trajectory) for trajectory in fresh),
            "steps": _mean(len(trajectory.turns) for trajectory in fresh),
            "malformed": _mean(trajectory.malformed for trajectory in fresh),
            **{("groups" if name == "total" else name): count for name, count in asdict(stats).items()},
            "replay_age": _mean(ages) if ages else 0.0,
            "replay_size": sum(map(len, self.replay.state().values())),
        }

    def state(self) -> dict[str, Any]:
        state = {"replay": self.replay.state(), **self.curriculum.state()}
        if self.run.unfinished is not None:  # the next start saves this batch again
            state["replayable"] = [sorted(episodes) for episodes in self._replayable]
        return state

    def saved(self) -> None:
        """Prune if due: delete the screenshots that no replay buffer on disk needs."""
        self._replayable.append(_episodes(self.replay.state()))
        every = self.config.store.prune_every
        if every and self.run.progress.batch % every == 0:
            self.run.store.prune(set().union(*self._replayable))

    def _restore(self, state: Mapping[str, Any]) -> None:
        stored = [episode for episodes in state["replay"].values() for episode in episodes]
        self.replay.restore(load_outline(self.run.store, name, self.run.player) for name in stored)
        self._replayable.extend(map(set, state.get("replayable", [stored])))
        played = self.run.store.episodes()
        self.curriculum.restore(state, (e for e in played if not e.episode_id.startswith(EVALUATED)))
        epochs = self.run.progress.tasks / len(self.run.sets["train"])
        self.run.refuse_less("train.epochs", epochs, self.config.train.epochs)


def _episodes(replay: Mapping[str, Sequence[str]]) -> set[str]:
    return {episode for stored in replay.values() for episode in stored}


def _mean(values: Iterable[float]) -> float:
    """NaN for no values: a batch whose episodes all failed has no success rate, not a rate of 0."""
    numbers = [float(value) for value in values]
    return fmean(numbers) if numbers else math.nan


def open_trainer(config: Config, store: RunFolder, display: Display) -> Trainer | OfflineTrainer:
    """The training loop of train.method."""
    loop = Trainer if config.train.method == "online" else OfflineTrainer
    return loop(config, store, display)


def run_training(config: Config, display: Display | None = None) -> int:
    """`arpo train`: start or resume the run in run.dir. Returns 130 if it was interrupted.

    `display` is closed at the end; None: the one for stdout.

    Returns 1 if most episodes failed because of the environment (see `report_failed_episodes`).
    """
    require_tokens(config)
    check_plugins(config)
    store = RunFolder(Path(config.run.dir))
    display = display or open_display(sys.stdout)
    try:
        config = pin_model(config, store.folder)
        check_folder(store, config)
        trainer = open_trainer(config, store, display)
        run = trainer.run
        store.delete_summary()
        store.write_recipe(config)

        with run.resumable(), closing(run):
            done = run_interruptibly(_train(trainer, display), run.stop)
        if not done:
            saved = "stopped" if run.saved_batch is None else f"saved after batch {run.saved_batch}"
            display.note(f"{saved}. Run the same command again to resume")
            return INTERRUPTED
        _finish(run, display)
        return report_failed_episodes(store, display)
    finally:
        display.close()
        store.close()


async def _train(trainer: Trainer | OfflineTrainer, display: Display) -> bool:
    async with trainer.run.player.started(display):
        return await trainer.train()


def _finish(run: Run, display: Display) -> None:
    """Write and show the summary, and export the model as a Hugging Face folder."""
    folder = run.store.folder
    summary = run.summary()
    run.store.write_summary(summary)
    display.summary(summary)
    model = folder / MODEL
    if model.is_symlink() or model.is_file():
        raise UserError(
            f"{model}: is a link or a file, and the trained model needs this name: move it to another "
            "folder, then run the same command again"
        )
    shutil.rmtree(model, ignore_errors=True)
    export_model(folder, model, run.config.model.dtype, merged=True)
    display.note(f"model:  {model}")
