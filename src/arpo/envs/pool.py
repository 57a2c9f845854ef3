"""Runs episodes in leased, single-use environments. Every call has a timeout; every environment is closed.

A failed episode is retried in a new environment. A task with too many consecutive failures is quarantined for
some batches. If no environment works, episodes wait until one works again.
The result is a Trajectory or a Failure; a fault never becomes a score. `LocalEnvs` makes environments in this
process, a limited number at a time; `remote.py` leases them from hosts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from arpo.actions import Action
from arpo.config import EnvConfig
from arpo.envs import wire
from arpo.envs.base import Env, EnvFactory, EnvSource, host_of
from arpo.envs.outage import OutageWatch
from arpo.envs.quarantine import BATCHES_ASIDE, Quarantine, QuarantineState
from arpo.envs.return_values import (
    definition,
    require_awaitable,
    require_observation,
    require_score,
    require_step_result,
)
from arpo.envs.slots import Slots
from arpo.errors import ArpoFault, Discarded, EnvError, PromptTooLong, boundary
from arpo.png import BadPng, read_size, rgb
from arpo.types import Failure, Observation, Screenshot, StepResult, Task, Trajectory

THREAD_PIXELS = 2**18  # larger screenshots are decoded in a thread: decoding takes longer than the switch
_QUARANTINED = "the task is set aside for some batches: too many of its episodes failed in a row"

Episode = Callable[[Env], Awaitable[Trajectory]]


class Quarantined(EnvError):
    """The episode was not attempted, because the task is quarantined."""


class GuardedEnv:
    """Wraps an environment: each call returns a valid value within its timeout, or raises EnvError.

    The score of a task without an evaluator is 0, whatever the environment would say.
    """

    def __init__(self, env: Env, config: EnvConfig, *, threads: bool = True) -> None:
        self.host = host_of(env)
        self._env = env
        self._config = config
        self._threads = threads
        self._screen = wire.configured_screen(config)  # None: the size of the first screenshot
        self._has_evaluator = True

    async def start(self, task: Task) -> Observation:
        self._has_evaluator = task.has_evaluator
        async with self._boundary("start", self._config.start_seconds):
            return await self._checked("start", await require_awaitable(self._env, self._env.start(task)))

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        async with self._boundary("step", self._config.step_seconds):
            result = await require_awaitable(self._env, self._env.step(actions))
            await self._checked("step", require_step_result(self._env, result).observation)
            return result

    async def evaluate(self) -> float:
        if not self._has_evaluator:
            return 0.0
        async with self._boundary("evaluate", self._config.evaluate_seconds):
            score = await require_awaitable(self._env, self._env.evaluate())
            return require_score(self._env, score)

    async def close(self) -> None:
        async with self._boundary("close", self._config.step_seconds):
            await require_awaitable(self._env, self._env.close())

    @asynccontextmanager
    async def _boundary(self, where: str, seconds: float) -> AsyncIterator[None]:
        """A fault outside the user's code, such as a wrong signature, gets the line of the method."""
        try:
            async with boundary(EnvError, where, seconds):
                yield
        except EnvError as fault:
            fault.place = fault.place or definition(self._env, where)
            fault.host = self.host
            raise

    async def _checked(self, where: str, value: Observation) -> Observation:
        """Decode the screenshot. Found only later, a bad one would fail other episodes or end the run."""
        require_observation(self._env, where, value)
        try:
            width, height = read_size(value.screenshot.png)
            if (width, height) != (self._screen or (width, height)):
                raise BadPng(f"is {width}x{height}, must be {self._expected_size()}")
            self._screen = width, height
            if self._threads and width * height > THREAD_PIXELS:
                await asyncio.to_thread(_decode, value.screenshot)
            else:
                _decode(value.screenshot)
        except BadPng as error:
            raise EnvError(where, str(error), definition(self._env, where)) from error
        return value

    def _expected_size(self) -> str:
        assert self._screen is not None
        size = "{}x{}".format(*self._screen)
        if wire.configured_screen(self._config) is None:
            return f"{size}, the size of the first one of the episode"
        return f"{size}: set env.width and env.height to the size of the screens"


class LocalEnvs:
    """Leases environments of this process, at most `parallel` at a time."""

    def __init__(self, factory: EnvFactory, parallel: int) -> None:
        self._factory = factory
        self._slots = Slots(parallel)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Env]:
        async with self._slots():
            async with boundary(EnvError, "start"):
                env = self._factory()
            yield env

    def close(self) -> None:
        """Close what the environments share, such as a browser: the method `close` of their factory."""
        if (close := getattr(self._factory, "close", None)) and not isinstance(self._factory, type):
            close()


class EnvPool:
    """Runs episodes in the environments of a source.

    `faults` counts every fault as "call:class", for example "step:EnvTimeout", also if a retry
    succeeded. An outage of all environments pauses `run`; it is not counted against tasks.
    """

    def __init__(self, source: EnvSource, config: EnvConfig) -> None:
        self.faults: Counter[str] = Counter()
        self.quarantine = Quarantine(config.quarantine_after, BATCHES_ASIDE)
        self.outage = OutageWatch(self._works, config.outage_seconds)
        self._source = source
        self._config = config
        self.parallel = config.parallel
        self.local = isinstance(source, LocalEnvs)
        self._slots = Slots(config.parallel)  # of episodes; waiting ones stay out of an outage

    def close(self) -> None:
        """Close the source. Call it after the last episode."""
        self._source.close()

    def state(self) -> QuarantineState:
        """Failures of tasks, for a checkpoint."""
        return self.quarantine.state()

    def restore(self, state: QuarantineState) -> None:
        self.quarantine.restore(state)

    async def run(self, task: Task, episode_id: str, episode: Episode) -> Trajectory | Failure:
        """Run one episode, with up to `env.attempts` attempts, each in a new environment.

        Every attempt waits for a free slot. The task may be quarantined in the meantime. A discarded episode
        is played again and does not count as an attempt. Raises Outage if no
        environment works for `env.outage_seconds`.
        """
        attempts, seen = 0, None
        while True:
            await self.outage.passed()
            try:
                async with self._slots():
                    if self.outage.is_down:
                        continue
                    if task.id in self.quarantine:
                        return _failure(task, episode_id, Quarantined("start", _QUARANTINED), attempts=0)
                    seen = self.quarantine.failures(task.id) if seen is None else seen
                    async with self._lease() as env:
                        trajectory = await episode(env)
            except Discarded:
                continue
            except ArpoFault as error:
                self._count(error)
                is_last = attempts + 1 == self._config.attempts
                if isinstance(error, EnvError) and await self.outage.ended(task, error, is_last=is_last):
                    continue
                attempts += 1
                if attempts < self._config.attempts and not isinstance(error, PromptTooLong):
                    continue  # a prompt is as long in another environment
                if isinstance(error, EnvError | PromptTooLong):
                    assert seen is not None
                    self.quarantine.failed(task.id, seen)
                return _failure(task, episode_id, error, attempts)
            self.played(task)
            return trajectory

    def played(self, task: Task) -> None:
        """An episode of the task was played, here or in a copy of this process."""
        self.quarantine.succeeded(task.id)
        self.outage.worked(task)

    async def _works(self, task: Task) -> bool:
        """Whether an environment starts."""
        try:
            async with self._lease() as env:
                await env.start(task)
        except ArpoFault as error:
            self._count(error)
            return False
        return True

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[Env]:
        async with self._source.lease() as leased:
            # Threads finish in any order, so a local run would not repeat itself exactly.
            env = GuardedEnv(leased, self._config, threads=not self.local)
            try:
                yield env
            finally:
                try:
                    await env.close()
                except EnvError as fault:
                    self._count(fault)

    def _count(self, fault: ArpoFault) -> None:
        """Count a fault. Raises CancelledError if the fault is the answer to a cancellation."""
        if (own := asyncio.current_task()) is not None and own.cancelling():
            raise asyncio.CancelledError from fault
        self.faults[f"{fault.where}:{type(fault).__name__}"] += 1


def _failure(task: Task, episode_id: str, fault: ArpoFault, attempts: int) -> Failure:
    return Failure(
        episode_id=episode_id,
        task_id=task.id,
        kind=type(fault).__name__,
        where=fault.where,
        message=fault.message,
        attempts=attempts,
        place=fault.place,
        host=fault.host,
    )


def _decode(screenshot: Screenshot) -> None:
    """Check the screenshot and keep its pixels, for the engine and the store, in the cache of `png.rgb`."""
    if Screenshot.of(screenshot.png) != screenshot:
        raise BadPng("has a wrong sha256: create it with Screenshot.of(png)")
    rgb(screenshot)
