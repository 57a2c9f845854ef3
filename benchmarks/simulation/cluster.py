"""Runs the trainer of `arpo train` on a simulated cluster, and measures it.

Trainer, batch source, scheduler, pool, vLLM engine with its router, and store are the real ones.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.envs.base import Env
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.learner.background import in_background
from arpo.models.loading import load_renderer
from arpo.reporting.display import Display
from arpo.rollout.player import Player
from arpo.storage.run_folder import RunFolder
from arpo.testing import screenshot
from arpo.training.checkpoints import Progress
from arpo.training.garbage import rare_collections, short_collections
from arpo.training.trainer import Trainer
from arpo.types import Sample
from simulation.clock import Clock, JumpingSelector, Meter, run_simulated
from simulation.replica import AnswerTexts, Gpu, Server
from simulation.roles import (
    FIRST_PORT,
    SimulatedEnvs,
    SimulatedHttp,
    SimulatedLearner,
    SimulatedPublisher,
)
from simulation.service_times import DEFAULT, ServiceTimes
from simulation.waiting_learner import work_in_loop

_T = TypeVar("_T")
Background = Callable[[], Coroutine[Any, Any, None]]
TASKS = 64  # different ones; an epoch
_TEXT = SimpleNamespace(vocab_size=2**20)
_MODEL = SimpleNamespace(config=SimpleNamespace(text_config=_TEXT, get_text_config=lambda: _TEXT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Sizes and settings. `shared`: replicas and learner use the same GPUs in turn (lock step only)."""

    environments: int
    replicas: int
    learner_gpus: int
    max_staleness: int = 0
    groups: int = 32  # per batch
    group_size: int = 8
    updates: int = 4  # per batch
    batches: int = 6  # measured, after the first ones
    shared: bool = False
    seed: int = 0
    slow: float = 1.0  # factor of the duration of every tenth task
    coupled: bool = False  # every step waits for all environments, as in the published systems
    compact: bool = True  # few tokens and small screenshots: less CPU time, the same simulated time
    replay: bool = False  # with few successes, and with a checkpoint after each batch
    times: ServiceTimes = DEFAULT

    @property
    def screen(self) -> tuple[int, int]:
        """Width and height of a screenshot."""
        return (56, 56) if self.compact else (1920, 1080)

    @property
    def success(self) -> float:
        """Probability. With replay, 43% of the groups of 8 have no success."""
        return 0.1 if self.replay else 0.5

    @property
    def gpus(self) -> int:
        return self.replicas if self.shared else self.replicas + self.learner_gpus

    @property
    def warm_up(self) -> int:
        """Batches before the measured ones."""
        return 1 + self.max_staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Integrals since the start, at the end of a batch."""

    seconds: float
    episodes: float
    environments: float  # in use, times seconds
    engine: float  # busy GPUs of replicas, times seconds
    requests: float  # times seconds
    learner: float  # busy seconds
    lost: float  # environments in episodes that were not played to their end, times seconds

    def __sub__(self, other: Totals) -> Totals:
        names = self.__slots__
        return Totals(**{name: getattr(self, name) - getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Of the measured batches. Shares of time are between 0 and 1."""

    cluster: Cluster
    seconds: float
    episodes: float
    environments: float
    engine: float
    learner: float
    queue: float  # requests per replica, running ones included
    waiting: float  # finished groups that wait for a batch, mean at the end of a batch
    lost: float  # share of the time of all environments, in episodes that were not played to their end
    failures: int  # of the whole run
    all_episodes: int  # of the whole run

    @property
    def per_hour(self) -> float:
        return 3600 * self.episodes / self.seconds

    @property
    def gpu_hours(self) -> float:
        """Per 1,000 episodes."""
        return 1000 * self.cluster.gpus / self.per_hour

    @property
    def env_hours(self) -> float:
        """Per 1,000 episodes."""
        return 1000 * self.cluster.environments / self.per_hour

    @property
    def bottleneck(self) -> str:
        """The role with the largest share of its time in use.

        If a whole batch of groups waits, the cycle of the learner: learn, write weights, update the servers.
        """
        if self.waiting >= self.cluster.groups:
            return "learner cycle"
        shares = {"environments": self.environments, "engine": self.engine, "learner": self.learner}
        return max(shares, key=shares.__getitem__)


class _Recorder(Display):
    """Reads the meters at the end of each batch, and stops the run after the last one."""

    def __init__(self, parts: Parts, batches: int) -> None:
        self.totals: list[Totals] = []
        self.waiting: list[float] = []
        self.stop = lambda: None
        self._parts, self._batches = parts, batches

    def begin(self, title: str, total_episodes: int, done: int = 0) -> None:
        if title == "training" and not self.totals:
            self.totals.append(self._parts.totals(0.0))

    def batch(self, step: int, metrics: Mapping[str, float]) -> None:
        self.totals.append(self._parts.totals(metrics["episodes"]))
        self.waiting.append(metrics.get("waiting", 0.0))
        if step == self._batches:
            self.stop()


class Parts:
    """The simulated parts of a cluster."""

    def __init__(self, cluster: Cluster, config: Config, clock: Clock, root: Path) -> None:
        times, shot = cluster.times, screenshot(128, cluster.screen)
        self.clock = clock
        self.envs = SimulatedEnvs(
            clock,
            times,
            shot,
            cluster.seed,
            coupled=cluster.coupled,
            success=cluster.success,
            slow=cluster.slow,
        )
        self.factory: Callable[[], Env] = self.envs
        self.busy, self.requests = Meter(clock), Meter(clock)
        self.renderer = load_renderer(config.model)
        answers = AnswerTexts(self.renderer, shot, compact=cluster.compact)
        gpus = [Gpu(clock, times, self.busy, self.requests) for _ in range(cluster.replicas)]
        self.servers = [Server(clock, times, answers, gpu) for gpu in gpus]
        self.http = SimulatedHttp(self.servers)
        self.learner = SimulatedLearner(clock, times, cluster.learner_gpus)
        self.publisher = SimulatedPublisher(self.learner, clock, times, root)

    def totals(self, episodes: float) -> Totals:
        return Totals(
            seconds=self.clock.now(),
            episodes=episodes,
            environments=self.envs.used.total,
            engine=self.busy.total,
            requests=self.requests.total,
            learner=self.learner.busy.total,
            lost=self.envs.lost,
        )

    def opened(self, shared: bool) -> ExitStack:
        """Put the simulated parts in the places of the real ones."""

        @contextmanager
        def open_publisher(*_: object) -> Iterator[SimulatedPublisher]:
            yield self.publisher

        @asynccontextmanager
        async def started(player: Player, _: object) -> AsyncIterator[None]:
            await player.scheduler.agent.engine.start()
            yield
            await player.scheduler.agent.engine.close()

        async def evaluate_nothing(*_: object) -> dict[str, Any]:
            return {}

        async def compare_nothing(*_: object) -> list[Sample]:
            return []

        places = {
            "arpo.rollout.player.Player.started": started,
            "arpo.rollout.player.open_pool": lambda config: EnvPool(
                LocalEnvs(self.factory, config.env.parallel), config.env
            ),
            "arpo.rollout.player.open_servers": lambda *_, **__: SimpleNamespace(share_gpu=shared),
            "arpo.engines.factory._load_model": lambda *_: _MODEL,
            "arpo.engines.vllm.HttpExchange": lambda *_: self.http,
            "arpo.training.run.open_learner": lambda *_: self.learner,
            "arpo.training.run.open_publisher": open_publisher,
            "arpo.training.run.short_collections": nullcontext,
            "arpo.training.evaluation.evaluate_sets": evaluate_nothing,
            "arpo.training.trainer.fresh_samples": compare_nothing,
            "arpo.training.trainer.learn": lambda learner, batch, *_: learner.train(batch),
        }
        stack = ExitStack()
        for name, part in places.items():
            stack.enter_context(mock.patch(name, part))
        return stack


def settings(cluster: Cluster, folder: Path, speed: float) -> Config:
    """The recipe of a cluster."""
    tasks = {f"pool-{number:03}": {"successes": 0, "rollouts": 0} for number in range(1, TASKS + 1)}
    (folder / "tasks.json").write_text(json.dumps({"source": "desk:pool", "tasks": tasks}), "utf-8")
    groups = (cluster.batches + cluster.warm_up + cluster.max_staleness + 2) * cluster.groups
    seconds = cluster.times.step_timeout * 100 / speed  # hanging environments have timeouts of their own
    values = {
        "run.dir": folder / "run",
        "run.seed": cluster.seed,
        "tasks.train": folder / "tasks.json",
        "tasks.heldout": "",
        "env.parallel": cluster.environments,
        "env.width": cluster.screen[0],
        "env.height": cluster.screen[1],
        "env.step_seconds": seconds,
        "env.start_seconds": 2 * seconds,
        "env.evaluate_seconds": 2 * seconds,
        "env.quarantine_after": 1000,
        "engine.name": "vllm",
        "engine.endpoints": f"http://127.0.0.1:{FIRST_PORT}-{FIRST_PORT + cluster.replicas - 1}",
        "model.max_pixels": 2_700_000,
        "rollout.group_size": cluster.group_size,
        "rollout.max_steps": cluster.times.answers[1],
        "rollout.max_images": cluster.times.answers[1],
        "rollout.max_answer_tokens": 2048,
        "rollout.max_context_tokens": 65_536,
        "train.epochs": 1 + groups // TASKS,
        "train.tasks_per_batch": cluster.groups,
        "train.tasks_per_update": max(1, cluster.groups // cluster.updates),
        "train.max_staleness": cluster.max_staleness,
        "replay.enabled": str(cluster.replay).lower(),
        "loss.kl": 0,
        "eval.every": 0,
        "store.tensorboard": "false",
        "store.checkpoint_every": 1 if cluster.replay else 1000,
    }
    return load_config("desk", [f"--{key}={value}" for key, value in values.items()])


def simulate(cluster: Cluster, selector: JumpingSelector | None = None) -> Result:
    """With a simulated clock: hours take seconds. `selector` may watch the event loop."""

    with mock.patch("arpo.training.run.Run.work", work_in_loop):
        return _measure(cluster, Clock(), partial(run_simulated, selector=selector))


def run_real(cluster: Cluster, speed: float, beside: Background | None = None) -> Result:
    """With the real clock, `speed` times faster than in reality. `beside` runs at the same time."""

    def run(work: Coroutine[Any, Any, _T]) -> _T:
        async def with_collections() -> _T:
            async with short_collections():
                return await work

        return asyncio.run(with_collections())

    def in_thread(work: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
        return in_background(lambda: asyncio.run(work_in_loop(None, work)))

    with mock.patch("arpo.training.run.in_background", in_thread):
        return _measure(cluster, Clock(speed), run, beside)


def _measure(cluster: Cluster, clock: Clock, run: Any, beside: Background | None = None) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "weights").mkdir()
        config = settings(cluster, folder, clock.speed)
        store = RunFolder(folder / "run")
        try:
            with rare_collections():  # with a simulated clock, 50 ms pass at once
                result: Result = run(_train(cluster, config, clock, store, beside))
            return result
        finally:
            store.close()


async def _train(
    cluster: Cluster, config: Config, clock: Clock, store: RunFolder, beside: Background | None
) -> Result:
    clock.start()
    parts = Parts(cluster, config, clock, store.folder.parent / "weights")
    recorder = _Recorder(parts, cluster.warm_up + cluster.batches)
    with parts.opened(cluster.shared):
        trainer = Trainer(config, store, recorder)
        recorder.stop = trainer.run.stop
        running = asyncio.create_task(beside()) if beside is not None else None
        try:
            await trainer.train()
        finally:
            if running is not None:
                running.cancel()
            trainer.run.close()
    return _result(cluster, recorder, trainer.run.progress)


def _result(cluster: Cluster, recorder: _Recorder, progress: Progress) -> Result:
    passed = recorder.totals[-1] - recorder.totals[cluster.warm_up]
    waiting = recorder.waiting[cluster.warm_up :]
    return Result(
        cluster=cluster,
        seconds=passed.seconds,
        episodes=passed.episodes,
        environments=passed.environments / (passed.seconds * cluster.environments),
        engine=passed.engine / (passed.seconds * cluster.replicas),
        learner=passed.learner / passed.seconds,
        queue=passed.requests / (passed.seconds * cluster.replicas),
        waiting=sum(waiting) / len(waiting),
        lost=passed.lost / (passed.seconds * cluster.environments),
        failures=progress.failures,
        all_episodes=progress.episodes,
    )
