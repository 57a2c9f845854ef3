"""Environments, HTTP, learner and publisher of a simulated cluster. They only wait."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

from arpo.actions import Action
from arpo.engines.base import Weights
from arpo.learner.base import Batch
from arpo.storage.published_weights import CHECKSUM_FILE, Probe, publishing, write_probe
from arpo.types import Observation, Screenshot, StepResult, Task
from simulation.clock import Clock, Meter
from simulation.replica import EPISODE, PROBE_LOGPROB, EpisodeOf, Server
from simulation.service_times import ServiceTimes
from simulation.waiting_learner import WaitingLearner

FIRST_PORT = 9000


class Barrier:
    """Every environment waits until all others have done as many calls, or have ended."""

    def __init__(self) -> None:
        self._members = self._arrived = 0
        self._open = asyncio.Event()

    def join(self) -> None:
        self._members += 1

    def leave(self) -> None:
        self._members -= 1
        self._release()

    async def wait(self) -> None:
        self._arrived += 1
        door = self._open
        self._release()
        await door.wait()

    def _release(self) -> None:
        if self._arrived >= self._members:
            self._open.set()
            self._open, self._arrived = asyncio.Event(), 0


class SimulatedEnvs:
    """A factory of environments. `used` integrates the number of leased ones, without waits at a barrier."""

    def __init__(
        self,
        clock: Clock,
        times: ServiceTimes,
        shot: Screenshot,
        seed: int,
        *,
        coupled: bool,
        success: float,
        slow: float,
    ) -> None:
        self.clock, self.times, self.observation = clock, times, Observation(screenshot=shot)
        self.used, self.success, self.slow = Meter(clock), success, slow
        self.lost = 0.0  # seconds of environments that were closed before an evaluation
        self._barrier = Barrier() if coupled else None
        self._seed, self._numbers = seed, count()

    def __call__(self) -> SimulatedEnv:
        return SimulatedEnv(self, Random(f"{self._seed}/{next(self._numbers)}"))

    def begin(self) -> None:
        self.used.add(1)
        if self._barrier is not None:
            self._barrier.join()

    def end(self) -> None:
        self.used.add(-1)
        if self._barrier is not None:
            self._barrier.leave()

    async def work(self, seconds: float) -> None:
        """One call of an environment."""
        await self.clock.sleep(seconds)
        if self._barrier is not None:
            self.used.add(-1)
            try:
                await self._barrier.wait()
            finally:
                self.used.add(1)

    async def hang(self) -> None:
        """Until a timeout of its own: other calls may take long, at a barrier and for slow tasks."""
        await self.clock.sleep(self.times.step_timeout)
        raise TimeoutError("the environment hangs")


class SimulatedEnv:
    """An episode of every tenth task takes `slow` times as long: its environment also delays the answers."""

    def __init__(self, envs: SimulatedEnvs, random: Random) -> None:
        self._envs, self._random = envs, random
        self._used = self._evaluated = False
        self._steps, self._hangs_at = 0, 0
        self._began = self._returned = 0.0
        self._factor = 1.0

    async def start(self, task: Task) -> Observation:
        times, random = self._envs.times, self._random
        self._used = True
        self._began = self._returned = self._envs.clock.now()
        self._factor = self._envs.slow if int(task.id[-3:]) % 10 == 1 else 1.0
        self._envs.begin()
        self._hangs_at = random.randint(1, 7) if random.random() < times.hangs else 0
        EPISODE.set(EpisodeOf(random=random, answers=random.randint(*times.answers)))
        await self._work(random.uniform(*times.boot))
        return self._envs.observation

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        self._steps += 1
        times = self._envs.times
        if self._steps == self._hangs_at:
            await self._envs.hang()
        await self._work(times.step(self._random))
        return StepResult(observation=self._envs.observation)

    async def evaluate(self) -> float:
        await self._envs.clock.sleep(self._envs.times.evaluation * self._factor)
        self._evaluated = True
        return float(self._random.random() < self._envs.success)

    async def close(self) -> None:
        if self._used:
            self._used = False
            self._envs.end()
            self._envs.lost += 0.0 if self._evaluated else self._envs.clock.now() - self._began

    async def _work(self, seconds: float) -> None:
        answering = self._envs.clock.now() - self._returned
        await self._envs.work(self._factor * seconds + (self._factor - 1) * answering)
        self._returned = self._envs.clock.now()


class SimulatedHttp:
    """Takes the place of `HttpExchange`. `cpu` has the CPU seconds of all servers themselves."""

    cpu = 0.0

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    def open(self) -> None: ...

    async def close(self) -> None: ...

    async def request(
        self, method: str, url: str, body: bytes | None, seconds: float
    ) -> tuple[int, str, float | None]:
        began = time.thread_time()
        parts = urlsplit(url)
        assert parts.port is not None
        server = self._servers[parts.port - FIRST_PORT]
        decoded = json.loads(body) if body else {}
        SimulatedHttp.cpu += time.thread_time() - began
        answer = await server.answer(parts.path, decoded)
        began = time.thread_time()
        text = answer() if callable(answer) else json.dumps(answer)
        SimulatedHttp.cpu += time.thread_time() - began
        return 200, text, None


class SimulatedLearner(WaitingLearner):
    """`busy` integrates its work."""

    def __init__(self, clock: Clock, times: ServiceTimes, gpus: int) -> None:
        super().__init__()
        self._clock, self._times, self._gpus = clock, times, gpus
        self.busy = Meter(clock)

    async def work(self, batch: Batch) -> None:
        with self.busy:
            for samples in batch.updates:
                screenshots = [len(sample.images) for sample in samples]
                await self._clock.sleep(self._times.update(screenshots, self._gpus))


class SimulatedPublisher:
    """Writes a folder with a probe and without weights, after the time that writing them takes."""

    def __init__(self, learner: SimulatedLearner, clock: Clock, times: ServiceTimes, root: Path) -> None:
        self._learner, self._clock, self._times, self._root = learner, clock, times, root
        self.folder: Path | None = None

    async def publish(self) -> Weights:
        await self._clock.sleep(self._times.load)
        version = self._learner.weights().version
        with publishing(self._root, version) as folder:
            probe = Probe(token_ids=(1, 2), images=(), answer=(3,), logprobs=(PROBE_LOGPROB,))
            write_probe(folder, probe)
            (folder / CHECKSUM_FILE).write_text("{}", encoding="utf-8")
        self.folder = folder
        return Weights(version=version, handle=folder)
