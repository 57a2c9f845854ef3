"""What every training run has, online or offline: its folder, its parts, evaluation, checkpoints, summary.

A run is a folder. Everything that the next batch depends on is in its newest checkpoint, and everything that
is written after it is cut off again on resume, so a run that was killed ends like one that was not. How a
batch comes about and what is learned from it is the business of the loops (`trainer`, `offline`).
"""

from __future__ import annotations

import json
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from arpo.config import INCIDENTAL, Config
from arpo.errors import UserError
from arpo.evaluation.evaluate import OVERALL, Score, evaluate_sets, sets_of_run
from arpo.learner.base import Batch, Metrics
from arpo.recipe import changed, load_config
from arpo.reporting.display import Display
from arpo.reporting.tracking import open_tracker
from arpo.storage import checkpoint
from arpo.storage.run_folder import RECIPE, RunFolder
from arpo.training.build import assemble, open_learner

STATE = "state.json"
COLLECTED = "collect"  # what the names of collected episodes begin with
EVALUATED = "eval"  # and of those that a run was measured by
MAY_CHANGE = (*INCIDENTAL, "train.epochs", "offline.passes")  # settings that a run may go on with others of


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a run stands: the part of a checkpoint that is plain numbers."""

    batch: int = 0
    tasks: int = 0  # taken from the stream of epochs
    episodes: int = 0
    failures: int = 0
    skipped: int = 0  # updates
    groups: dict[str, int] = field(default_factory=dict)
    success: dict[str, dict[str, float]] = field(default_factory=dict)  # base and final, each set of tasks
    counts: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    seconds: float = 0.0


class Run(ABC):
    """One run in one process, from its folder. A loop has set up what is its own before this is."""

    def __init__(self, config: Config, store: RunFolder, display: Display, beginning: Progress) -> None:
        self.config, self.store, self.display = config, store, display
        self._checkpoints = store.folder / checkpoint.CHECKPOINTS
        self.sets = sets_of_run(config, store.folder, self._checkpoints.is_dir(), display)
        ensemble = assemble(config)
        self.scheduler = ensemble.scheduler
        self.learner = open_learner(ensemble, config)
        self.progress = beginning
        self.timing = Timing()
        self.stopping = False
        self._resume()
        self.tracker = open_tracker(config, store, self.progress.batch + 1)
        self._began = time.monotonic() - self.progress.seconds

    @abstractmethod
    def _show(self) -> None:
        """Begin the display of training, also again after an evaluation."""

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """What of its own a checkpoint has to keep."""

    @abstractmethod
    def _restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `_state` gave; refuse to go on where that would be another run."""

    async def _begin(self) -> None:
        """Serve the weights; where nothing has happened yet, measure the base model."""
        await self.scheduler.agent.engine.load(self.learner.weights())
        if not self.progress.success:
            self.tracker.log(0, await self._evaluate("base"))
            self._save()
        self._show()

    async def _learn(self, batch: Batch) -> Metrics:
        """Train on the batch and serve the new version."""
        with self.timing.stage("learn"):
            metrics = await self.learner.train(batch)
            await self.scheduler.agent.engine.load(self.learner.weights())
        if skipped := int(metrics["skipped"]):
            self.progress.skipped += skipped
            self.display.note(
                f"{skipped} of {skipped + int(metrics['updates'])} updates were skipped: their loss or their "
                "gradient was no finite number; if it goes on, lower optim.lr or loss.kl"
            )
        return metrics

    async def _end_batch(self, metrics: Mapping[str, float], *, played: int, done: bool) -> None:
        """Evaluate where it is due, write the metrics and the checkpoint; `played` episodes were in it."""
        progress, every = self.progress, self.config.eval.every
        self.display.batch(progress.batch, metrics)
        measured: dict[str, float] = {}
        if done or (every and progress.batch % every == 0):
            measured = await self._evaluate("final" if done else "")
            if not done:
                self._show()
        self.tracker.log(progress.batch, {**metrics, **measured})
        self.store.log_timing(progress.batch, self.timing.taken(played))
        if done or self.stopping or progress.batch % self.config.store.checkpoint_every == 0:
            self._save()

    async def _evaluate(self, landmark: str) -> dict[str, float]:
        """Measure the sets of tasks, keep one episode of each task; a landmark enters the summary."""
        name = f"{EVALUATED}{self.progress.batch}"
        sets = {which: tasks for which, tasks in self.sets.items() if landmark or which != OVERALL}
        with self.timing.stage("evaluate"):
            groups = await evaluate_sets(self.scheduler, self.config, sets, name, self.display)
        scores = {which: Score.of(played) for which, played in groups.items()}
        for group in (group for played in groups.values() for group in played):
            for trajectory in group.trajectories[:1]:
                self.store.add_trajectory(trajectory)
            for failure in group.failures:
                self.store.add_failure(failure)
        self.progress.failures += sum(score.failures for score in scores.values())
        self.store.log_evaluation(
            {
                "step": self.progress.batch,
                "episodes": self.progress.episodes,
                "landmark": landmark,
                "sets": {which: score.by_task for which, score in scores.items()},
                "failures": {which: score.failures for which, score in scores.items()},
            }
        )
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
            "pool": self.scheduler.pool.state(),
            "offsets": self.store.offsets(),
            **self._state(),
        }

        def write(folder: Path) -> None:
            self.learner.save(folder / checkpoint.LEARNER)
            (folder / STATE).write_text(json.dumps(state) + "\n", encoding="utf-8")

        checkpoint.save(self._checkpoints, self.progress.batch, write, self.config.store.keep_checkpoints)

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
        self.scheduler.pool.restore(state["pool"])
        self._restore(state)
        self.display.note(f"going on from {found.path}, after batch {self.progress.batch}")

    def _refuse_less(self, key: str, done: float, total: float) -> None:
        """Refuse an end that lies behind the run: its summary would be of another one, or missing."""
        if done > total or (done == total and "final" not in self.progress.success):
            raise UserError(
                f"{key} = {total:g}: the run in {self.store.folder} has gone through {done:g} already; give "
                "it more, or a --run.dir of its own"
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
            "skipped_updates": progress.skipped,
            "seconds": progress.seconds,
        }


class Timing:
    """Seconds of each stage since they were last taken."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - start

    def taken(self, played: int) -> dict[str, float]:
        """The seconds of the stages and, if there was a rollout, its episodes a second; begins anew."""
        seconds, self._seconds = self._seconds, {}
        rate = {"episodes_per_second": played / seconds["rollout"]} if "rollout" in seconds else {}
        return seconds | rate


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


def collected(store: RunFolder) -> list[str]:
    """The episodes of a folder that `arpo collect` fills."""
    return [name for name in store.episode_ids() if name.startswith(f"{COLLECTED}-")]


def claim(store: RunFolder, config: Config) -> None:
    """Refuse a folder that holds something else than a training run of this recipe."""
    if collected(store):
        raise UserError(
            f"{store.folder}: holds collected episodes: give the run a --run.dir of its own; it learns from "
            "them with --offline.source"
        )
    if (store.folder / checkpoint.CHECKPOINTS).is_dir():
        check_recipe(store, config, partial(_may_change, config))


def check_recipe(store: RunFolder, config: Config, may_change: Callable[[str], bool]) -> None:
    """What has begun in this folder is of this recipe, or is refused."""
    path = store.folder / RECIPE
    if path.is_file():
        others = [key for key in changed(load_config(path), config) if not may_change(key)]
        if others:
            raise UserError(
                f"{path}: the run in this folder has another {', '.join(others)}: give this one a --run.dir "
                "of its own, or remove the folder to begin again"
            )


def _may_change(config: Config, key: str) -> bool:
    """Whether a run may go on with another value. Easy tasks come first by the number of epochs: it stays."""
    decides_tasks = key == "train.epochs" and config.train.curriculum == "easy_first"
    return key.startswith(MAY_CHANGE) and not decides_tasks
