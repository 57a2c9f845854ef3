"""The online training loop: rollouts, replay, advantages, updates, new weights (`arpo train`)."""

from __future__ import annotations

import asyncio
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo.algorithms.credit import Credit
from arpo.algorithms.noisy_rewards import confusion, doubtful, is_judged_success
from arpo.algorithms.replay import ReplayBuffer, replay_rng
from arpo.algorithms.samples import GroupStats, build_updates, count_groups, prompt_cost, teacher_samples
from arpo.algorithms.schedules import decay
from arpo.config import Config
from arpo.config.changes import find_changes
from arpo.engines.factory import require_tokens
from arpo.errors import UserError, closed_on_error
from arpo.interrupts import INTERRUPTED, run_interruptibly
from arpo.learner.base import Batch, Metrics
from arpo.models.hub import pin_model
from arpo.models.loading import check_trainable
from arpo.plugins import check_plugins, open_plugin
from arpo.reporting.display import Display, open_display
from arpo.storage.checkpoint import CHECKPOINTS
from arpo.storage.codec import BATCH, SEED, is_training_episode
from arpo.storage.run_folder import RunFolder
from arpo.tasks.order import open_order
from arpo.tasks.sources import TaskIndex
from arpo.training.checkpoints import Progress, State, check_folder, load_checked, note_changes
from arpo.training.engine_check import disagreements, fresh_samples, learn
from arpo.training.export import export_model
from arpo.training.group_stream import GroupStream
from arpo.training.judged_scores import JudgedScores
from arpo.training.lock_step import LockStep, trained_groups
from arpo.training.offline import OfflineTrainer, Source
from arpo.training.reporting import report_failed_episodes
from arpo.training.run import Run
from arpo.training.seeds import copied_seeds, copy_seeds, draw_seeds, open_seeds
from arpo.types import Group, Sample, Trajectory

MODEL = "model"
Watching = Callable[[Path, Callable[[str], None]], AbstractContextManager[object]]


def not_watching(folder: Path, note: Callable[[str], None]) -> AbstractContextManager[None]:
    return nullcontext()


class Trainer:
    """The online loop. It learns from its own episodes."""

    def __init__(self, config: Config, store: RunFolder, display: Display) -> None:
        self.config = config
        groups = {
            "total": 0,
            "without_signal": 0,
            "rescued": 0,
            **({"seeded": 0} if config.replay.seeds else {}),
        }
        new = not (store.folder / CHECKPOINTS).is_dir()
        seeds = open_seeds(config, display) if config.replay.seeds and new else None  # before the model
        self.run = Run(config, store, display, Progress(groups=groups), self)
        with closed_on_error(self.run):
            self._open(store, seeds)

    def _open(self, store: RunFolder, seeds: Source | None) -> None:
        config, tasks = self.config, self.run.sets["train"]
        self._tasks = TaskIndex(tasks)
        self.replay = ReplayBuffer(config.replay, lambda name: load_checked(store, name, self.run.player))
        reward, advantage = open_plugin(config.plugins, "reward"), open_plugin(config.plugins, "advantage")
        self.credit = Credit(config.loss, reward, advantage, self._tasks)
        self.order = open_order(config, tasks)
        self.scores = JudgedScores(config, store.folder, self._tasks, self.run.display)
        self.source: LockStep | GroupStream = (
            GroupStream(self.run, self.order, self._tasks, self.scores)
            if self.run.streams
            else LockStep(self.run, self.order, self.credit, self.scores)
        )
        if self.run.restored is not None:
            self._restore(self.run.restored)
        elif config.replay.seeds:
            self.replay.restore(copy_seeds(self.run, seeds or open_seeds(config, self.run.display)))
        self._taught = copied_seeds(store) if config.loss.teacher else []

    async def train(self) -> bool:
        """Train until all epochs are done or the run is asked to stop. Returns True if all are done."""
        run = self.run
        async with self.scores, run.begun(), self.source as source:
            while not self.done and (played := await source.next_batch()) is not None:
                groups = await run.work(partial(self._replay, played))
                batch = await self._samples(groups)
                fresh = await self._fresh_samples(played, batch)
                async with run.learning():
                    learned = await run.work(partial(learn, run.learner, batch, fresh, self.config))
                source.trained()
                await self._end_batch(played, groups, self._check_engine(learned))
                del groups, batch, fresh
                await _free(played)
        return self.done and run.unfinished is None

    def show(self) -> None:
        total = self.order.total * self.config.rollout.group_size
        done = self.run.progress.episodes + len(self.source.waiting_episodes())
        self.run.display.begin("training", total, done)

    @property
    def done(self) -> bool:
        return self.run.progress.tasks >= self.order.total

    def _replay(self, played: Sequence[Group]) -> list[Group]:
        """Put stored successes into the groups, compute and record their advantages. It may take seconds."""
        rng = replay_rng(self.config.run.seed, self.run.progress.batch)
        version = self.run.learner.weights().version
        groups = self.replay.rescue(played, rng, version, self._audit(played))
        for group in groups:
            rewards, advantages = map(self.credit.reward, group.trajectories), self.credit.advantages(group)
            self.run.store.log_group(self.run.progress.batch + 1, version, group, list(rewards), advantages)
        for trajectory in (trajectory for group in played for trajectory in group.trajectories):
            self.credit.reward(trajectory)  # also of episodes that replay has replaced
        return groups

    def _audit(self, played: Sequence[Group]) -> set[str]:
        """Count the errors of a judge. Returns the episodes whose success is doubtful."""
        weight, threshold = self.config.reward.judge, self.config.replay.threshold
        if not weight:
            return set()
        progress = self.run.progress
        episodes = (one for group in played for one in group.trajectories)
        progress.audit = progress.audit.add(confusion(episodes, weight, threshold))
        return doubtful(played, progress.audit.noise(), threshold)

    async def _samples(self, groups: Sequence[Group]) -> Batch:
        """The samples of the groups, with their advantages, split into updates, and those of the teacher.

        A sample of a long episode takes a millisecond. Rollouts continue after each one.
        """
        rollout = self.config.rollout
        updates: list[tuple[Sample, ...]] = []
        for update in build_updates(
            trained_groups(groups, self.config.loss, self.config.train, self.credit),
            self.config.loss,
            tasks_per_update=self.config.train.tasks_per_update,
            token_budget=rollout.max_steps * rollout.max_answer_tokens,
            version=self.run.learner.weights().version,
            credit=self.credit,
        ):
            samples = []
            taught = await self.run.work(partial(self._load_taught, len(updates))) if self._taught else []
            for sample in chain(update, teacher_samples(taught)):
                samples.append(sample)
                await asyncio.sleep(0)
            updates.append(tuple(samples))
        return Batch(updates=tuple(updates), lr_scales=self._lr_scales(len(groups), len(updates)))

    def _load_taught(self, update: int) -> list[Trajectory]:
        """The teacher's episodes of an update of this batch, which is counted from 0."""
        run, count = self.run, self.config.train.tasks_per_update
        names = draw_seeds(self._taught, count, self.config.run.seed, run.progress.batch, update)
        return [load_checked(run.store, name, run.player) for name in names]

    def _lr_scales(self, played: int, updates: int) -> tuple[float, ...]:
        """Factors of the learning rate. Progress is measured in tasks: their total is known in advance.

        `played` groups are in the batch: with dynamic sampling more than its updates contain.
        """
        optim, per_update = self.config.optim, self.config.train.tasks_per_update
        began = self.run.progress.tasks - played
        return tuple(
            decay(
                optim.schedule,
                done=(began + played * index / updates) / per_update,
                total=self.order.total / per_update,
                warmup=optim.warmup_updates,
            )
            for index in range(updates)
        )

    async def _fresh_samples(self, played: Sequence[Group], batch: Batch) -> list[Sample]:
        run = self.run
        version, engine = run.learner.weights().version, run.scheduler.agent.engine
        return await fresh_samples(played, batch, version, engine, self.config)

    def _check_engine(self, metrics: Metrics) -> Metrics:
        """Report a batch in which engine and learner disagree about the same tokens, or were not compared."""
        number = self.run.progress.batch + 1
        if not metrics["engine_tokens"]:
            self.run.display.note(
                f"batch {number}: engine and learner were not compared: no answer of the current weights"
            )
        if not (found := disagreements(metrics, self.config)):
            return metrics
        untrained = "untrained" in metrics
        self.run.progress.untrained += untrained
        done = (
            "was not trained on" if untrained else "was trained on: train.engine_kl_skip = true prevents it"
        )
        self.run.display.note(
            f"batch {number}: engine and learner disagree, {', '.join(found)}. The batch {done}. To find "
            f"the cause: arpo doctor --gap {shlex.quote(str(self.run.store.folder))}"
        )
        return {**metrics, "engine_alarm": 1.0}

    def _check_judge(self, played: Sequence[Group]) -> dict[str, float]:
        """The error rates of a judge. Reports a batch after which they are higher than before."""
        if not self.config.reward.judge:
            return {}
        audit, number = self.run.progress.audit, self.run.progress.batch
        newest, noise = audit.recent[-1], audit.noise()
        verdicts = [
            is_judged_success(one, self.config.reward.judge) for group in played for one in group.trajectories
        ]
        metrics = {
            "judge_false_positives": newest.false_positives / (newest.failures or math.nan),
            "judge_false_negatives": newest.false_negatives / (newest.successes or math.nan),
            "judge_success": noise.success(_mean(verdicts)) if noise and verdicts else math.nan,
        }
        if not (found := audit.drifts()):
            return metrics
        self.run.display.note(
            f"batch {number}: judge and evaluators drift apart: in the last {len(audit.recent)} batches, "
            f"{'; '.join(found)}. The model may have learned to please the judge: read such episodes (arpo "
            "view), then start a new run with another judge or a lower reward.judge"
        )
        return {**metrics, "judge_alarm": 1.0}

    async def _end_batch(self, played: Sequence[Group], groups: Sequence[Group], learned: Metrics) -> None:
        progress, threshold = self.run.progress, self.config.replay.threshold
        stats = count_groups(groups, self.config.loss, success=threshold, credit=self.credit)
        progress.batch += 1
        metrics = self._batch_metrics(played, groups, stats)
        for name in progress.groups:
            progress.groups[name] += int(metrics["groups" if name == "total" else name])
        self.run.records.check_answers(
            f"{BATCH}{progress.batch}",
            [(self._tasks[one.task_id], one.trajectories[0]) for one in played if one.trajectories],
        )
        await self.run.end_batch(
            {**metrics, **self._check_judge(played), **learned},
            groups,
            played=sum(len(group.trajectories) for group in played),
        )

    def _batch_metrics(
        self, played: Sequence[Group], groups: Sequence[Group], stats: GroupStats
    ) -> dict[str, float]:
        """Metrics of the played episodes, including those that replay replaced, and of the groups."""
        fresh = [trajectory for group in played for trajectory in group.trajectories]
        rescues = [rescue for group in groups for rescue in group.rescues]
        ages = [rescue.age for rescue in rescues]
        seeded = sum(rescue.stored_episode.startswith(f"{SEED}-") for rescue in rescues)
        prompt_tokens, prompt_cached = prompt_cost(fresh)
        return {
            "episodes": self.run.progress.episodes,
            "failures": self.run.progress.failures,
            "success": _mean(trajectory.score >= self.config.replay.threshold for trajectory in fresh),
            "reward": _mean(self.credit.reward(trajectory) for trajectory in fresh),
            "steps": _mean(len(trajectory.turns) for trajectory in fresh),
            "malformed": _mean(trajectory.malformed for trajectory in fresh),
            "prompt_tokens": prompt_tokens,
            "prompt_cached": prompt_cached,
            **{("groups" if name == "total" else name): count for name, count in asdict(stats).items()},
            **({"seeded": seeded} if self.config.replay.seeds else {}),
            "replay_age": _mean(ages) if ages else 0.0,
            "replay_size": sum(map(len, self.replay.state().values())),
            **self.source.metrics(),
        }

    def state(self) -> dict[str, Any]:
        return {"replay": self.replay.state(), **self.order.state(), **self.source.state()}

    def saved(self) -> None:
        """Prune if due: delete the screenshots needed by no checkpoint on disk."""
        every = self.config.store.prune_every
        if every and self.run.progress.batch % every == 0:
            # Episodes that wait for a batch may have ended after the checkpoint: the next one names them.
            needed = self.run.checkpoints.needed_episodes() | self.source.waiting_episodes()
            self.run.store.prune(needed.union(self._taught))

    def _restore(self, state: State) -> None:
        stored = [episode for episodes in state.replay.values() for episode in episodes]
        load = partial(load_checked, self.run.store, player=self.run.player, outline=True)
        self.replay.restore(map(load, stored))
        self.source.restore(state)
        played = self.run.store.episodes()
        self.order.restore(state.orders, (e for e in played if is_training_episode(e.episode_id)))
        self._refuse_shorter()

    def _refuse_shorter(self) -> None:
        done, train = self.run.progress.tasks, self.config.train
        if train.tasks:
            self.run.refuse_less("train.tasks", done, train.tasks)
        else:
            self.run.refuse_less("train.epochs", done / len(self.run.sets["train"]), train.epochs)


def _mean(values: Iterable[float]) -> float:
    """NaN for no values: a batch whose episodes all failed has no success rate, not a rate of 0."""
    numbers = [float(value) for value in values]
    return fmean(numbers) if numbers else math.nan


def run_training(config: Config, display: Display | None = None, watching: Watching = not_watching) -> int:
    """`arpo train`: start or resume the run in run.dir. Returns 130 if it was interrupted.

    `display` is closed at the end; None: the one for stdout. `watching` is open while the run trains.

    Returns 1 if most episodes failed because of the environment (see `report_failed_episodes`).
    """
    require_tokens(config.engine)
    check_plugins(config.plugins)
    store = RunFolder(Path(config.run.dir))
    display = display or open_display(sys.stdout)
    try:
        check_trainable(config.model)  # before gigabytes are downloaded
        config = pin_model(config, store.folder)
        recorded = check_folder(store, config)
        trainer = (Trainer if config.train.method == "online" else OfflineTrainer)(config, store, display)
        run = trainer.run
        with run.checkpoints.resumable(), closing(run):
            store.delete_summary()
            following = run.progress.batch + 1
            changes = find_changes(recorded or config, config, following)
            note_changes(store, display, changes, following, resumed=run.restored is not None)
            store.write_recipe(config)
            with watching(store.folder, display.note):
                done = run_interruptibly(trainer.train(), run.stop)
        if not done:
            batch = run.checkpoints.batch
            saved = "stopped" if batch is None else f"saved after batch {batch}"
            display.note(f"{saved}. Run the same command again to resume")
            return INTERRUPTED
        _finish(run, display)
        return report_failed_episodes(store, display)
    finally:
        display.close()
        store.close()


async def _free(groups: list[Group]) -> None:
    """Free one group per turn of the event loop: an episode has up to 43,000 tokens."""
    while groups:
        groups.pop()
        await asyncio.sleep(0)


def _finish(run: Run, display: Display) -> None:
    """Write and show the summary, and export the model as a Hugging Face folder."""
    folder = run.store.folder
    summary = run.records.summary()
    run.store.write_summary(summary)
    display.summary(summary)
    for finding in run.records.findings():
        display.note(finding.text)
    model = folder / MODEL
    if model.is_symlink() or model.is_file():
        raise UserError(
            f"{model}: is a link or a file, and the trained model needs this name: move it to another "
            "folder, then run the same command again"
        )
    shutil.rmtree(model, ignore_errors=True)
    export_model(folder, model, merged=True)
    display.note(f"model:  {model}")
