"""The training loop: rollouts, replay, advantages, update, new weights; then it is written down.

A run is a folder. Everything that the next batch depends on is in its newest checkpoint, and everything that
is written after it is cut off again on resume, so a run that was killed ends like one that was not.
"""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from arpo import checkpoint
from arpo.assembly import assemble, open_learner
from arpo.config import Config
from arpo.display import Display, open_display
from arpo.errors import UserError
from arpo.evaluate import SETS, Score, evaluate_sets, sets_of_run, tell_failures
from arpo.learner.base import Batch, Metrics
from arpo.models.export import export_model
from arpo.recipe import load_config
from arpo.replay import ReplayBuffer
from arpo.rewards import reward
from arpo.samples import GroupStats, Updates, samples_of, split_by_signal
from arpo.store import RECIPE, Store
from arpo.tasks import curriculum_of
from arpo.tracking import open_tracker
from arpo.types import Group, Task

STATE, MODEL = "state.json", "model"
MAY_CHANGE = (
    "train.epochs",
    "store.",
    "run.dir",
    "run.threads",
    "model.features_megabytes",
    "optim.rank",
    "env.hosts",
    "env.listen",
)  # keys that a run may go on with another value of


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a run stands: the part of a checkpoint that is plain numbers."""

    batch: int = 0
    tasks: int = 0  # taken from the stream of epochs
    episodes: int = 0
    failures: int = 0
    groups: dict[str, int] = field(default_factory=lambda: {"total": 0, "without_signal": 0, "rescued": 0})
    success: dict[str, dict[str, float]] = field(default_factory=dict)  # base and final, train and heldout
    counts: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    seconds: float = 0.0


class Trainer:
    """One run in one process, from its folder."""

    def __init__(self, config: Config, store: Store, display: Display) -> None:
        self.config, self.store, self.display = config, store, display
        self._checkpoints = store.folder / checkpoint.CHECKPOINTS
        self.curriculum = curriculum_of(config)
        self.sets = sets_of_run(config, store.folder, self._checkpoints.is_dir(), display)
        ensemble = assemble(config)
        self.scheduler = ensemble.scheduler
        self.learner = open_learner(ensemble, config)
        self.replay = ReplayBuffer(config.replay)
        self.progress = Progress()
        self.timing = Timing()
        self.stopping = False
        # What the replay buffers of the checkpoints on the disk name: pruning leaves it alone.
        self._named: deque[set[str]] = deque(maxlen=config.store.keep_checkpoints)
        self._resume()
        self.tracker = open_tracker(config, store, self.progress.batch + 1)
        self._began = time.monotonic() - self.progress.seconds

    async def train(self) -> bool:
        """Go on until every epoch is done, or until asked to stop; whether it is done."""
        await self.scheduler.agent.engine.load(self.learner.weights())
        if not self.progress.success:
            self.tracker.log(0, await self._evaluate("base"))
            self._save()
        self.display.begin("training", self._total_tasks * self._group_size, self.progress.episodes)
        while self.progress.tasks < self._total_tasks and not self.stopping:
            played = await self._rollout()
            groups = self.replay.rescue(played, self._rng(), self.learner.weights().version)
            updates, stats = self._samples(groups)
            metrics = await self._learn(Batch(updates=updates))
            await self._finish_batch(played, groups, stats, metrics)
        return self.progress.tasks >= self._total_tasks

    @property
    def _group_size(self) -> int:
        return self.config.rollout.group_size

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

    async def _learn(self, batch: Batch) -> Metrics:
        """Train on the batch and serve the new version."""
        with self.timing.stage("learn"):
            metrics = await self.learner.train(batch)
            await self.scheduler.agent.engine.load(self.learner.weights())
        return metrics

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
        """Count, evaluate where it is due, write the metrics and the checkpoint."""
        progress = self.progress
        progress.batch += 1
        for name in progress.groups:
            progress.groups[name] += getattr(stats, name)
        done = progress.tasks >= self._total_tasks
        metrics = {**self._batch_metrics(played, groups, stats), **learned}
        self.display.batch(progress.batch, metrics)
        every = self.config.eval.every
        if done or (every and progress.batch % every == 0):
            metrics |= await self._evaluate("final" if done else "")
            if not done:
                self.display.begin("training", self._total_tasks * self._group_size, progress.episodes)
        self.tracker.log(progress.batch, metrics)
        self.store.log_timing(progress.batch, self.timing.taken(sum(len(g.trajectories) for g in played)))
        if done or self.stopping or progress.batch % self.config.store.checkpoint_every == 0:
            self._save()

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

    async def _evaluate(self, landmark: str) -> dict[str, float]:
        """Measure both sets of tasks, keep one episode of each task; a landmark enters the summary."""
        name = f"eval{self.progress.batch}"
        with self.timing.stage("evaluate"):
            groups = await evaluate_sets(self.scheduler, self.config, self.sets, name, self.display)
        scores = {which: Score.of(groups[which]) for which in SETS}
        for group in (group for which in SETS for group in groups[which]):
            for trajectory in group.trajectories[:1]:
                self.store.add_trajectory(trajectory)
            for failure in group.failures:
                self.store.add_failure(failure)
        self.progress.failures += sum(score.failures for score in scores.values())
        if landmark:
            self.progress.success[landmark] = {which: score.rate for which, score in scores.items()}
            self.progress.counts[landmark] = {
                which: (score.successes, score.episodes) for which, score in scores.items()
            }
        return {f"eval_{which}": score.rate for which, score in scores.items()}

    def _save(self) -> None:
        self.progress.seconds = time.monotonic() - self._began
        state = {
            "progress": asdict(self.progress),
            "replay": self.replay.state(),
            "pool": self.scheduler.pool.state(),
            "offsets": self.store.offsets(),
        }

        def write(folder: Path) -> None:
            self.learner.save(folder / checkpoint.LEARNER)
            (folder / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")

        checkpoint.save(self._checkpoints, self.progress.batch, write, self.config.store.keep_checkpoints)
        self._named.append(_names(state["replay"]))
        every = self.config.store.prune_every
        if every and self.progress.batch % every == 0:
            self.store.prune(set().union(*self._named))

    def _resume(self) -> None:
        """Go on from the newest whole checkpoint; without one, begin."""
        found, damaged = checkpoint.latest(self._checkpoints)
        for line in damaged:
            self.display.note(line)
        if found is None:
            if damaged:  # to begin again would cut off all that the run has written
                raise UserError(
                    f"{self._checkpoints}: no whole checkpoint is left; remove the run to begin again"
                )
            self.store.rewind({})
            return
        state = json.loads((found.path / STATE).read_text(encoding="utf-8"))
        self.learner.load(found.path / checkpoint.LEARNER)
        self.progress = Progress(**state["progress"])
        self.store.rewind(state["offsets"])
        self.replay.restore(
            self.store.load_trajectory(episode) for stored in state["replay"].values() for episode in stored
        )
        self._named.append(_names(state["replay"]))
        self.scheduler.pool.restore(state["pool"])
        self._check_epochs()
        self.display.note(f"going on from {found.path}, after batch {self.progress.batch}")

    def _check_epochs(self) -> None:
        """Refuse fewer epochs than were trained: the summary's end would be of another run, or missing."""
        done, measured = self.progress.tasks, "final" in self.progress.success
        if done > self._total_tasks or (done == self._total_tasks and not measured):
            raise UserError(
                f"train.epochs = {self.config.train.epochs}: the run in {self.store.folder} has gone through "
                f"{done / len(self.sets['train']):g} already; give it more, or a --run.dir of its own"
            )

    def summary(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "recipe": asdict(self.config),
            "seed": self.config.run.seed,
            "episodes": progress.episodes,
            "success": progress.success,
            "counts": progress.counts,
            "groups": progress.groups,
            "failures": progress.failures,
            "seconds": progress.seconds,
        }


class Timing:
    """Seconds of each stage since they were last taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - start

    def taken(self, episodes: int) -> dict[str, float]:
        """The seconds of the stages, and the episodes that were rolled out in one; begins anew."""
        seconds, self._seconds = self._seconds, {}
        return {**seconds, "episodes_per_second": episodes / seconds["rollout"]}


def _names(replay: Mapping[str, Sequence[str]]) -> set[str]:
    return {episode for stored in replay.values() for episode in stored}


def _mean(values: Iterable[float]) -> float:
    """Of nothing it is no number: a batch that could not be carried out has no success, not one of 0."""
    numbers = [float(value) for value in values]
    return fmean(numbers) if numbers else math.nan


@contextmanager
def stops_gently(stop: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C (or SIGTERM) calls `stop`; a second one interrupts at once."""

    def handle(signum: int, frame: Any) -> None:
        for either in before:
            signal.signal(either, signal.default_int_handler)
        stop()

    before = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def run_training(config: Config) -> int:
    """`arpo train`: begin the run in run.dir or go on with it, and leave its summary, report and model."""
    store = Store(Path(config.run.dir))
    display = open_display(sys.stdout)
    try:
        claim(store, config)
        trainer = Trainer(config, store, display)

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


def claim(store: Store, config: Config) -> None:
    """Write the recipe; where the run in this folder has begun, make sure that it is of the same one."""
    path = store.folder / RECIPE
    if path.is_file() and (store.folder / checkpoint.CHECKPOINTS).is_dir():
        before = _settings(load_config(path))
        changed = [
            key
            for key, value in _settings(config).items()
            if before[key] != value and not key.startswith(MAY_CHANGE)
        ]
        if changed:
            raise UserError(
                f"{path}: the run in this folder has another {', '.join(changed)}: give this one a --run.dir "
                "of its own, or remove the folder to begin again"
            )
    store.write_recipe(config)


def _settings(config: Config) -> dict[str, Any]:
    return {
        f"{section}.{key}": value for section, keys in asdict(config).items() for key, value in keys.items()
    }


def _finish(trainer: Trainer, display: Display) -> None:
    """The summary, as a file and on the screen, and the model as others load it."""
    folder = trainer.store.folder
    summary = trainer.summary()
    trainer.store.write_summary(summary)
    display.summary(summary)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    export_model(folder, folder / MODEL, trainer.config.model.dtype, merged=True)
    display.note(f"model:  {folder / MODEL}")
