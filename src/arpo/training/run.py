"""A training run, online or offline: the parts that both loops share, from the first start to the last batch.

`checkpoints` says what is saved and restored, `evaluation` what is played between batches, `reporting` what
is recorded. The loops (`trainer`, `offline`) decide where a batch comes from and how to learn from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch

from arpo.cluster.ranks import open_ranks
from arpo.config import Config
from arpo.engines.base import Weights
from arpo.errors import Outage, UserError, closed_on_error
from arpo.learner.background import in_background
from arpo.learner.base import Learner, Metrics
from arpo.learner.local import LocalLearner
from arpo.learner.publish import Publisher, open_publisher
from arpo.learner.restarting import Recovery, RestartingLearner
from arpo.learner.sharded import ShardedLearner
from arpo.models.memory_advice import fit_memory
from arpo.models.trainable import base_model_of, copy_trained, set_trainable
from arpo.reporting.display import Display
from arpo.reporting.tracking import open_trackers
from arpo.rollout.player import Player, open_player
from arpo.serving.memory import run_need
from arpo.storage.checkpoint import CHECKPOINTS
from arpo.storage.run_folder import RunFolder
from arpo.tasks.sets import require_scores, sets_of_run
from arpo.training.checkpoints import Checkpoints, Progress, State, UnfinishedBatch, load_checked
from arpo.training.evaluation import Evaluations, EvaluationStopped
from arpo.training.garbage import short_collections
from arpo.training.reporting import Records
from arpo.types import Group

AGAIN = "Press Ctrl-C again to stop at once"
_T = TypeVar("_T")


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

    def __init__(
        self, config: Config, store: RunFolder, display: Display, progress: Progress, loop: Loop
    ) -> None:
        self.config, self.store, self.display, self.progress = config, store, display, progress
        self.checkpoints = Checkpoints(store, config.store.keep_checkpoints, display)
        resumed = (store.folder / CHECKPOINTS).is_dir()
        self.sets = sets_of_run(config, store.folder, resumed, display)
        if config.train.method == "online":
            require_scores(config, self.sets)
        self.asynchronous = config.train.max_staleness > 0
        self.stopping = False
        self.on_stop: Callable[[], None] = lambda: None  # called in the event loop, to end a wait
        self.unfinished: UnfinishedBatch | None = None
        self.restored: State | None = None
        self._loop = loop
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._opened = ExitStack()
        with closed_on_error(self):
            self._open()
            self._restore()
            streamed = self.restored is not None and self.restored.stream is not None
            self.streams = self.asynchronous or streamed  # batches come from a GroupStream
            self.records = Records(config, store, display, self.progress)
            self.timing = self.records.timing
            self.scheduler.activity.report = self.records.calls.add_episode
            self.evaluations = Evaluations(config, self.sets, self.scheduler, self.records)

    def _open(self) -> None:
        """Open player and learner."""
        config = self.config
        recovery = None
        if config.cluster.ray and (launcher := open_ranks(config)) is not None:  # before torch uses a GPU
            self._opened.callback(launcher.close)
            recovery = Recovery(
                launcher=launcher,
                newest_checkpoint=lambda: self.checkpoints.learner,
                report=self._report_restart,
            )
        gpus = None if config.cluster.ray else torch.cuda.device_count()
        fitted = fit_memory(config, learning=True, need_of=partial(run_need, gpus=gpus))
        if fitted.optim != config.optim:
            tokens = fitted.optim.tokens_per_microbatch
            self.display.note(f"optim.tokens_per_microbatch = {tokens}: larger ones do not fit into the GPU")
        self.player = open_player(fitted, learning=True)
        self._opened.callback(self.player.close)
        self.scheduler = self.player.scheduler
        self.learner = open_learner(self.player, fitted, recovery)
        self._opened.callback(self.learner.close)
        self._publisher: Publisher | None = None  # for engines in other processes
        if not config.samples_in_process:
            opened = open_publisher(
                config.cluster, config.engine, self.learner, self.player.token_renderer, self.store.folder
            )
            self._publisher = self._opened.enter_context(opened)

    def _report_restart(self, reason: str) -> None:
        self.progress.learner_restarts += 1
        self.display.note(f"{reason}. The learner restarts from the last checkpoint")

    def close(self) -> None:
        self._opened.close()

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[None]:
        """A block with a started engine, which has the learner's weights.

        Before it, a new run is evaluated and saved: the baseline.
        """
        self._event_loop = asyncio.get_running_loop()
        async with self.player.started(self.display), short_collections():
            if self.restored is not None and self.checkpoints.newest is not None:
                self.display.note(
                    f"resuming from {self.checkpoints.newest.path}, after batch {self.progress.batch}"
                )
            next_step = self.progress.batch + (self.unfinished is None)
            self.records.trackers = open_trackers(self.config, self.store, next_step)
            self._opened.callback(self.records.trackers.close)
            await self.scheduler.agent.engine.load(await self._new_weights())
            await self._measure_baseline()
            self._take_shares()  # the evaluation belongs to no batch
            if not self.stopping:
                self._loop.show()
            yield

    async def _measure_baseline(self) -> None:
        """Evaluate a new run before training. For a resumed one, finish its interrupted evaluation."""
        if self.progress.success:
            if self.unfinished is not None:
                self.timing.add(self.unfinished.seconds)
                await self._complete(self.unfinished)
            return
        try:
            self.records.trackers.log(0, await self._evaluate("base"))
        except EvaluationStopped:
            return
        self.records.store_stages()
        await self.save()

    @asynccontextmanager
    async def learning(self) -> AsyncIterator[None]:
        """A block in which the learner trains on a batch. After it, the engine has the new weights."""
        with self.timing.stage("learn"):
            async with self.player.free_gpu():
                yield
                if self.config.store.token_stats:
                    await self.work(lambda: self.records.store_token_stats(self.learner.token_stats()))
                weights = await self._new_weights()
            await self.scheduler.agent.engine.load(weights)

    async def _new_weights(self) -> Weights:
        """The learner's weights for the engine: its module, or a published folder for other processes."""
        if self._publisher is None:
            return self.learner.weights()
        return await self.work(self._publisher.publish)

    async def work(self, work: Callable[[], _T]) -> _T:
        """Call a function that blocks: in a thread if rollouts continue or servers are watched meanwhile."""
        return await in_background(work) if self.asynchronous or self._publisher is not None else work()

    async def end_batch(self, metrics: Metrics, groups: Sequence[Group], *, played: int) -> None:
        """Evaluate if due, then write metrics and checkpoint.

        `groups` are for the callback. `played` is the number of episodes in the batch.
        """
        self.records.show_batch(metrics)
        kept = tuple(groups) if self.records.callback else ()
        await self._complete(UnfinishedBatch(metrics=metrics, groups=kept, played=played, seconds={}))

    async def _complete(self, batch: UnfinishedBatch) -> None:
        """Evaluate if due. If the run is asked to stop, a checkpoint keeps the batch for the next start."""
        number, every, done = self.progress.batch, self.config.eval.every, self._loop.done
        measured: Metrics = {}
        if done or (every and number % every == 0):
            try:
                measured = await self._evaluate("final" if done else "")
            except (EvaluationStopped, Outage) as error:
                self.unfinished = replace(batch, seconds=self.timing.pause())
                self.records.store_stages()
                await self.save()
                if isinstance(error, Outage):
                    raise
                return
            if not done:
                self._loop.show()
        self.unfinished = None
        if paused := self.scheduler.pool.outage.take_seconds():
            self.timing.add({"outage": paused})
        self.records.store_batch(batch, measured, self._take_shares() if batch.played else {})
        if done or self.stopping or number % self.config.store.checkpoint_every == 0:
            await self.save()

    async def _evaluate(self, landmark: str) -> Metrics:
        if self.stopping:
            raise EvaluationStopped
        try:
            model = self.player.model if self._publisher is None else self._publisher.folder
            return await self.evaluations.measure(landmark, model)
        except Outage:
            if self.stopping:
                raise EvaluationStopped from None
            raise

    def _take_shares(self) -> dict[str, float]:
        return self.scheduler.activity.shares(self.config.env.parallel)

    async def save(self) -> None:
        """Write a checkpoint. It replaces one of the same batch."""
        with self.timing.stage("save"):
            state = self._state()  # a copy: rollouts may continue
            offsets = self.store.begin_offsets()
            await self.work(lambda: self.checkpoints.save(self.progress.batch, self.learner, state, offsets))
        if self.unfinished is None:
            self.evaluations.forget_finished()
            self._loop.saved()

    def _state(self) -> dict[str, Any]:
        self.progress.seconds = self.records.calls.elapsed()
        return {
            "progress": asdict(self.progress),
            "pool": asdict(self.scheduler.pool.state()),
            **self._loop.state(),
            **({"unfinished": self.unfinished.to_json()} if self.unfinished is not None else {}),
        }

    def _restore(self) -> None:
        load = partial(load_checked, self.store, player=self.player)
        self.restored = state = self.checkpoints.restore(self.learner, load)
        if state is not None:
            self.progress, self.unfinished = state.progress, state.unfinished
            self.scheduler.pool.restore(state.pool)

    def refuse_less(self, key: str, done: float, total: float) -> None:
        """Refuse a total below the progress of the run: its summary would be wrong or missing."""
        complete = "final" in self.progress.success or self.unfinished is not None
        if done > total or (done == total and not complete):
            raise UserError(
                f"{key} = {total:g}: the run in {self.store.folder} has already done {done:g}. Raise it, or "
                "choose another --run.dir"
            )

    def stop(self) -> None:
        """Finish the batch and save, or stop the evaluation. For signal handlers: it only tells the loop."""
        self.stopping = True
        self.display.note(self._describe_stop())
        if self._event_loop is not None:
            for end_wait in (self.player.stop_waiting, self.on_stop, self.evaluations.stop):
                with suppress(RuntimeError):  # the loop has ended: nothing waits any more
                    self._event_loop.call_soon_threadsafe(end_wait)

    def _describe_stop(self) -> str:
        """What a run that is asked to stop still does, and how long that takes."""
        batch, timing = self.progress.batch + 1, self.timing
        saving = f"saving ({timing.about(('save',))})"
        if self.evaluations.running:
            rest = f" and {saving}" if self.progress.success else ""  # before that, there is nothing to save
            return (
                f"stopping the evaluation: its finished episodes are stored; closing the environments{rest}. "
                f"{AGAIN}"
            )
        if self.streams and timing.current in ("wait", "learn"):
            learning = timing.current == "learn"
            rest = timing.about(("learn", "save") if learning else ("save",))
            first = f"finishing batch {batch}" if learning else "stopping"
            return f"{first} and saving ({rest}). Finished groups are kept, others are played again. {AGAIN}"
        if self.scheduler.pool.outage.is_down:
            return f"stopping: no environment works. Only batch {batch} is lost. {AGAIN}"
        if timing.current in ("", "evaluate"):
            return f"stopping. {AGAIN}"
        if timing.current == "save":
            return f"{saving}. {AGAIN}"
        first = "rollout" if self.config.train.method == "online" else "judge"
        rest = timing.about((first, "learn", "save"))
        return f"finishing batch {batch} and saving ({rest}). {AGAIN}: only this batch is lost"


def open_learner(player: Player, config: Config, recovery: Recovery | None = None) -> Learner:
    """The learner of the player's model. optim.ranks > 1 starts further processes.

    With `recovery`, these are on a cluster, and a lost one is replaced.
    """
    model, renderer = player.model, player.token_renderer
    set_trainable(model, config.model, config.run.seed)
    if config.trains_a_copy:
        model = copy_trained(model)
    if recovery is not None:
        return RestartingLearner(ShardedLearner(model, renderer, config, recovery.launcher), recovery)
    if config.optim.ranks > 1:
        return ShardedLearner(model, renderer, config)
    base = base_model_of(model) if config.compares_with_base else None
    return LocalLearner(model, renderer, config, base)
