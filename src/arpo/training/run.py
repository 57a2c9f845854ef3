"""The state of every training run, online or offline: folder, player, learner, progress, checkpoints.

A run is a folder. The newest checkpoint has everything that the next batch depends on. On resume, everything
written after that checkpoint is removed. So an interrupted run ends with the same result as an uninterrupted
one. The loops (`trainer`, `offline`) decide where a batch comes from and how to learn from it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from arpo.config import Config
from arpo.config.task_set_names import OVERALL, TRAIN, TRAINING_EPISODES
from arpo.engines.base import Weights
from arpo.errors import Outage, UserError, closed_on_error
from arpo.evaluation.evaluate import evaluate_sets
from arpo.evaluation.finished_episodes import FinishedEpisodes, evaluation_key
from arpo.evaluation.scoring import AllFailed, Score, training_episodes
from arpo.learner.background import in_background
from arpo.learner.base import Batch, Metrics
from arpo.learner.publish import Publisher, open_publisher
from arpo.models.memory_advice import fit_memory
from arpo.plugins import open_plugin, run_callback
from arpo.reporting.display import Display
from arpo.reporting.tracking import EpisodeTracker, NullTracker, open_tracker
from arpo.rollout.player import open_player
from arpo.storage import checkpoint
from arpo.storage.codec import EVALUATED
from arpo.storage.files import RESTORE_OR_LEAVE, damage, parse_object
from arpo.storage.run_folder import METRICS, RunFolder
from arpo.tasks.sets import evaluated, sets_of_run
from arpo.training.build import open_learner, open_recovery
from arpo.training.checkpoints import Progress, UnfinishedBatch
from arpo.training.landmarks import set_landmark
from arpo.training.reporting import CallLog, Timing, last_durations, train_and_store
from arpo.training.stop_note import describe_stop
from arpo.types import Failure, Group, Task

STATE = "state.json"
EVALUATING = "evaluating"  # folder of the finished episodes of an evaluation in progress


_T = TypeVar("_T")


class EvaluationStopped(Exception):
    """The run was asked to stop. The finished episodes of the evaluation are stored."""


class Loop(Protocol):
    """A training loop, as seen by its run."""

    @property
    def done(self) -> bool:
        """Whether all batches are trained."""
        ...

    def show(self) -> None:
        """Show the progress of training. Called at the start and after each evaluation."""
        ...

    def state(self) -> dict[str, Any]:
        """The loop's own part of a checkpoint, as JSON."""
        ...

    def saved(self) -> None:
        """A checkpoint was written."""
        ...


class Run:
    """One training run in this process. `restored` is the state of its newest checkpoint, None if new."""

    def __init__(self, config: Config, store: RunFolder, display: Display, progress: Progress) -> None:
        self.config, self.store, self.display = config, store, display
        self._checkpoints = store.folder / checkpoint.CHECKPOINTS
        found = self._find_checkpoint()  # reports damaged files before the model is loaded
        self.sets = sets_of_run(config, store.folder, self._checkpoints.is_dir(), display)
        self._saved = found  # the newest checkpoint
        self.progress = progress
        self.tracker: EpisodeTracker = NullTracker()  # until `begin`: a loop may still refuse to resume
        self._opened = ExitStack()
        with closed_on_error(self):
            self._open(found)

    def _open(self, found: checkpoint.Checkpoint | None) -> None:
        config = self.config
        recovery = open_recovery(config, self._newest_learner, self._report_restart)
        if recovery is not None:
            self._opened.callback(recovery.launcher.close)
        fitted = fit_memory(config, learning=True)
        if fitted.optim != config.optim:
            tokens = fitted.optim.tokens_per_microbatch
            self.display.note(f"optim.tokens_per_microbatch = {tokens}: larger ones do not fit into the GPU")
        self.player = open_player(fitted, learning=True)
        self._opened.callback(self.player.close)
        self.scheduler = self.player.scheduler
        self.learner = open_learner(self.player, fitted, recovery)
        self._opened.callback(self.learner.close)
        self.timing = Timing(last_durations(self.store))
        self.stopping = False
        self.on_stop: Callable[[], None] = lambda: None  # called in the event loop, to end a wait
        self.asynchronous = config.train.max_staleness > 0
        self.unfinished: UnfinishedBatch | None = None
        self._evaluation: asyncio.Task[dict[str, list[Group]]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._callback = open_plugin(config, "callback")
        self._publisher = self._open_publisher()
        self._resumed = found is not None
        self.restored = self._load(found)
        self._began = time.monotonic() - self.progress.seconds
        self._calls = CallLog(self.store, self.progress.seconds)
        self.scheduler.activity.report = self._calls.add_episode

    @property
    def evaluating(self) -> bool:
        return self._evaluation is not None

    def _newest_learner(self) -> Path | None:
        return None if self._saved is None else self._saved.path / checkpoint.LEARNER

    def _report_restart(self, reason: str) -> None:
        self.progress.learner_restarts += 1
        self.display.note(f"{reason}. The learner restarts from the last checkpoint")

    def _open_publisher(self) -> Publisher | None:
        """None if the engine samples from a module in this process."""
        if self.config.samples_in_process:
            return None
        renderer, folder = self.player.token_renderer, self.store.folder
        return self._opened.enter_context(open_publisher(self.config, self.learner, renderer, folder))

    async def begin(self, loop: Loop) -> None:
        """Load the weights into the engine. A new run is evaluated and saved first: the baseline."""
        self._loop = asyncio.get_running_loop()
        if self._resumed and self._saved is not None:
            self.display.note(f"resuming from {self._saved.path}, after batch {self.progress.batch}")
        next_step = self.progress.batch + (self.unfinished is None)
        self.tracker = open_tracker(self.config, self.store, next_step)
        await self.scheduler.agent.engine.load(await self._new_weights())
        if not self.progress.success:
            try:
                self.tracker.log(0, await self._evaluate("base"))
            except EvaluationStopped:
                return
            self._store_stages()
            await self.save(loop)
        elif self.unfinished is not None:
            self.timing.add(self.unfinished.seconds)
            await self._complete(loop, self.unfinished)
        self._take_shares()  # the evaluation belongs to no batch
        if not self.stopping:
            loop.show()

    def stop(self) -> None:
        """Finish the batch and save, or stop the evaluation. For signal handlers: it only tells the loop."""
        self.stopping = True
        self.display.note(describe_stop(self))
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.player.stop_waiting)
            self._loop.call_soon_threadsafe(self.on_stop)
            if self._evaluation is not None:
                self._loop.call_soon_threadsafe(self._evaluation.cancel)

    async def learn(self, batch: Batch) -> Metrics:
        """Train on the batch and load the new weights into the engine."""
        store = self.store if self.config.store.token_stats else None
        with self.timing.stage("learn"):
            async with self.player.free_gpu():
                training = train_and_store(self.learner, batch, store, self.progress.batch + 1)
                del batch  # the learner's thread frees it: 22 million tokens take 0.1 s
                metrics = await self._work(training)
                weights = await self._new_weights()
            await self.scheduler.agent.engine.load(weights)
        if skipped := int(metrics["skipped"]):
            self.progress.skipped += skipped
            self.display.note(
                f"{skipped} of {skipped + int(metrics['updates'])} updates were skipped: their loss or "
                "gradient was not finite. If this continues, lower optim.lr or loss.kl"
            )
        return metrics

    def store_group(self, group: Group) -> None:
        """Store the episodes of a played group, and store and count its failures."""
        for trajectory in group.trajectories:
            self.store.add_trajectory(trajectory)
        for failure in group.failures:
            self.store_failure(failure)

    def store_failure(self, failure: Failure) -> None:
        self.store.add_failure(failure)
        self.progress.failures += 1

    def show_episodes(self, count: int) -> None:
        """Advance the progress bar of training. During an evaluation, there is another one."""
        for _ in range(0 if self.evaluating else count):
            self.display.episode_done()

    async def _new_weights(self) -> Weights:
        """The learner's weights for the engine: its module, or a published folder for other processes."""
        if self._publisher is None:
            return self.learner.weights()
        return await self._work(self._publisher.publish())

    async def _work(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine that blocks: in a thread if rollouts continue or servers are watched meanwhile."""
        return await (in_background(work) if self.asynchronous or self._publisher is not None else work)

    async def end_batch(
        self, loop: Loop, metrics: Mapping[str, float], groups: Sequence[Group], *, played: int
    ) -> None:
        """Evaluate if due, then write metrics and checkpoint.

        `groups` are for the callback. `played` is the number of episodes in the batch.
        """
        self.display.batch(self.progress.batch, metrics)
        kept = groups if self._callback else ()
        batch = UnfinishedBatch(metrics=metrics, groups=kept, played=played, seconds={})
        await self._complete(loop, batch)

    async def _complete(self, loop: Loop, batch: UnfinishedBatch) -> None:
        """Evaluate if due. If the run is asked to stop, a checkpoint keeps the batch for the next start."""
        progress, every = self.progress, self.config.eval.every
        measured: dict[str, float] = {}
        if loop.done or (every and progress.batch % every == 0):
            try:
                measured = await self._evaluate("final" if loop.done else "")
            except (EvaluationStopped, Outage) as error:
                self.unfinished = replace(batch, seconds=self.timing.pause())
                self._store_stages()
                await self.save(loop)
                if isinstance(error, Outage):
                    raise
                return
            if not loop.done:
                loop.show()
        self.unfinished = None
        metrics = {**batch.metrics, **measured}
        if self._callback:
            metrics |= run_callback(self._callback, progress.batch, metrics, batch.groups)
        self.tracker.log(progress.batch, metrics)
        if paused := self.scheduler.pool.outage.take_seconds():
            self.timing.add({"outage": paused})
        shares = self._take_shares() if batch.played else {}
        self.store.log_timing(progress.batch, self.timing.take(batch.played) | shares)
        self._store_stages()
        if loop.done or self.stopping or progress.batch % self.config.store.checkpoint_every == 0:
            await self.save(loop)

    def _store_stages(self) -> None:
        self._calls.add_stages(self.progress.batch, self.timing.take_stages())

    def _take_shares(self) -> dict[str, float]:
        return self.scheduler.activity.shares(self.config.env.parallel)

    async def _evaluate(self, landmark: str) -> dict[str, float]:
        """Evaluate the task sets and store one episode per task. A landmark enters the summary."""
        name = f"{EVALUATED}{self.progress.batch}"
        due = {which: tasks for which, tasks in self.sets.items() if landmark or which != OVERALL}
        sets = evaluated(due, self.config.eval)
        with self.timing.stage("evaluate"):
            try:
                groups = await self._play(sets, name)
            except AllFailed as error:
                for failure in error.failures:
                    self.store.add_failure(failure)
                raise
        for which, played in groups.items():
            shown = [(sets[which][one.index], one.trajectories[0]) for one in played if one.trajectories]
            self.tracker.log_episodes(self.progress.batch, which, shown)
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
                "without_verdict": {which: score.without_verdict for which, score in scores.items()},
            }
        )
        if landmark:
            set_landmark(self.progress, self.store, landmark, scores)
        return {f"eval_{which}": score.rate for which, score in scores.items()}

    async def _play(self, sets: Mapping[str, Sequence[Task]], name: str) -> dict[str, list[Group]]:
        """Play the missing episodes of an evaluation. Raises EvaluationStopped if the run shall stop."""
        if self.stopping:
            raise EvaluationStopped
        model = self._publisher.folder if self._publisher else self.player.model
        key = evaluation_key(self.config, sets, model)
        kept = FinishedEpisodes(self.store.folder / EVALUATING, key, "--run.dir")
        playing = evaluate_sets(self.scheduler, self.config, sets, name, self.display, kept)
        self._evaluation = asyncio.create_task(playing)
        try:
            return await self._evaluation
        except asyncio.CancelledError:
            if (own := asyncio.current_task()) is not None and own.cancelling():
                raise
            raise EvaluationStopped from None
        except Outage:
            if self.stopping:
                raise EvaluationStopped from None
            raise
        finally:
            self._evaluation = None
            kept.close()

    @property
    def saved_batch(self) -> int | None:
        """The batch of the newest checkpoint, None if there is none."""
        return None if self._saved is None else self._saved.step

    async def save(self, loop: Loop) -> None:
        """Write a checkpoint. It replaces one of the same batch."""
        with self.timing.stage("save"):
            state = deepcopy(self._state(loop))  # rollouts may continue, and change parts of it
            await self._work(self._write_checkpoint(state, self.store.begin_offsets()))
        if self.unfinished is None:
            shutil.rmtree(self.store.folder / EVALUATING, ignore_errors=True)
            loop.saved()

    def _state(self, loop: Loop) -> dict[str, Any]:
        self.progress.seconds = time.monotonic() - self._began
        return {
            "progress": asdict(self.progress),
            "pool": self.scheduler.pool.state(),
            **loop.state(),
            **({"unfinished": self.unfinished.to_json()} if self.unfinished is not None else {}),
        }

    async def _write_checkpoint(
        self, state: Mapping[str, Any], offsets: Callable[[], Mapping[str, int]]
    ) -> None:
        """`offsets` waits until the episodes of the state are on disk, and returns the sizes of the files."""
        text = json.dumps({**state, "offsets": offsets()})

        def write(folder: Path) -> None:
            self.learner.save(folder / checkpoint.LEARNER)
            (folder / STATE).write_text(text + "\n", encoding="utf-8")

        keep = self.config.store.keep_checkpoints
        self._saved = checkpoint.save(self._checkpoints, self.progress.batch, write, keep)

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Add to an OSError of the block, for example a full disk, where the run will resume."""
        try:
            yield
        except OSError as error:
            if self._saved is not None:
                error.add_note(f"it resumes after batch {self._saved.step}")
            raise

    def _find_checkpoint(self) -> checkpoint.Checkpoint | None:
        """The newest intact checkpoint, None for a new run. Raises UserError if a file does not match it."""
        found, damaged = checkpoint.latest(self._checkpoints)
        for line in damaged:
            self.display.note(line)
        if found is not None:
            self.store.check_sizes(_read_state(found)["offsets"])
        elif damaged or any(line.get("step") for line in self.store.read_log(METRICS)):
            # A new start would remove all files of the run.
            raise UserError(
                f"{self._checkpoints}: no intact checkpoint is left. Restore one, or remove the run folder "
                "to start again"
            )
        return found

    def _load(self, found: checkpoint.Checkpoint | None) -> Mapping[str, Any] | None:
        """Restore the checkpoint and return its state."""
        if found is None:
            self.store.rewind({})
            return None
        state = _read_state(found)
        self.learner.load(found.path / checkpoint.LEARNER)
        with damage(found.path / STATE, RESTORE_OR_LEAVE):
            self.progress = Progress(**state["progress"])
            self.scheduler.pool.restore(state["pool"])
            if state.get("unfinished") is not None:
                self.unfinished = UnfinishedBatch.from_json(state["unfinished"], self.store)
        self.store.rewind(state["offsets"])
        return state

    def refuse_less(self, key: str, done: float, total: float) -> None:
        """Refuse a total below the progress of the run: its summary would be wrong or missing."""
        complete = "final" in self.progress.success or self.unfinished is not None
        if done > total or (done == total and not complete):
            raise UserError(
                f"{key} = {total:g}: the run in {self.store.folder} has already done {done:g}. Raise it, or "
                "choose another --run.dir"
            )

    def close(self) -> None:
        with self._opened:
            self.tracker.close()

    def _training_episodes(self) -> dict[str, Any]:
        """Progress on the training tasks if no evaluation plays them."""
        if TRAIN in self.progress.success.get("base", {}):
            return {}
        return {TRAINING_EPISODES: training_episodes(self.store.read_log(METRICS))}

    def summary(self) -> dict[str, Any]:
        progress = self.progress
        return {
            "recipe": asdict(self.config),
            "seed": self.config.run.seed,
            "episodes": progress.episodes,
            "success": progress.success,
            "counts": progress.counts,
            "left_out": progress.left_out,
            **self._training_episodes(),
            "groups": progress.groups,
            "failures": progress.failures,
            **({"dropped_groups": progress.dropped_groups} if self.asynchronous else {}),
            **({"dropped_episodes": progress.dropped_episodes} if self.asynchronous else {}),
            "skipped_updates": progress.skipped,
            **({"learner_restarts": progress.learner_restarts} if self.config.cluster.ray else {}),
            "untrained_batches": progress.untrained,
            "seconds": progress.seconds,
        }


def _read_state(found: checkpoint.Checkpoint) -> dict[str, Any]:
    path = found.path / STATE
    state = parse_object(path.read_bytes(), path, RESTORE_OR_LEAVE)
    with damage(path, RESTORE_OR_LEAVE):
        if not all(type(size) is int for size in state["offsets"].values()):
            raise ValueError("offsets are not integers")
    return state
