"""Episodes in leased, single-use environments: every call timed, every environment closed.

An episode that fails is tried again in a fresh environment; a task whose episodes keep failing is set aside.
What comes out is a trajectory or a Failure. No fault is ever given a score here. Where environments come from
is a source's business: `LocalEnvs` makes them in this process, so many at once.
"""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from numbers import Real

from PIL import Image

from arpo.actions import Action
from arpo.config import EnvConfig
from arpo.envs.base import Env, EnvFactory, EnvSource
from arpo.errors import ArpoFault, EnvError, boundary
from arpo.types import Failure, Observation, StepResult, Task, Trajectory

PNG_HEADER = b"\x89PNG\r\n\x1a\n"
_SET_ASIDE = "the task is set aside: too many of its episodes failed in a row"

Episode = Callable[[Env], Awaitable[Trajectory]]


class Quarantined(EnvError):
    """The episode was not tried, because the episodes of its task kept failing."""


class GuardedEnv:
    """An environment that answers in time and in its types, or raises EnvError."""

    def __init__(self, env: Env, config: EnvConfig) -> None:
        self._env = env
        self._config = config

    async def start(self, task: Task) -> Observation:
        async with boundary(EnvError, "start", self._config.start_seconds):
            return _checked_observation("start", await self._env.start(task))

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        async with boundary(EnvError, "step", self._config.step_seconds):
            result = await self._env.step(actions)
            if not isinstance(result, StepResult):
                raise EnvError("step", f"gave {type(result).__name__}, not a StepResult")
            _checked_observation("step", result.observation)
            return result

    async def evaluate(self) -> float:
        async with boundary(EnvError, "evaluate", self._config.evaluate_seconds):
            return _checked_score(await self._env.evaluate())

    async def close(self) -> None:
        async with boundary(EnvError, "close", self._config.step_seconds):
            await self._env.close()


class Slots:
    """So many at once. asyncio's semaphore serves one loop; a run may have several, one after another."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None
        self._free = asyncio.Semaphore(most)

    def __call__(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._free = loop, asyncio.Semaphore(self._most)
        return self._free


class LocalEnvs:
    """The source of environments in this process: `parallel` at once, each made when it has a place."""

    def __init__(self, factory: EnvFactory, parallel: int) -> None:
        self._factory = factory
        self._slots = Slots(parallel)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Env]:
        async with self._slots():
            async with boundary(EnvError, "start"):
                env = self._factory()
            yield env


class EnvPool:
    """`faults` counts every fault as "where:kind", also of attempts that a later one made good."""

    def __init__(self, source: EnvSource, config: EnvConfig) -> None:
        self.faults: Counter[str] = Counter()
        self._source = source
        self._config = config
        self._failed_in_a_row: Counter[str] = Counter()

    @property
    def quarantined(self) -> frozenset[str]:
        limit = self._config.quarantine_after
        return frozenset(task for task, failed in self._failed_in_a_row.items() if failed >= limit)

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps: the episodes of each task that failed in a row."""
        return dict(self._failed_in_a_row)

    def restore(self, state: Mapping[str, int]) -> None:
        self._failed_in_a_row = Counter(state)

    async def run(self, task: Task, episode_id: str, episode: Episode) -> Trajectory | Failure:
        """Carry out one episode, in as many fresh environments as it may take.

        Waits for a place of the source, before each attempt anew; by then the task may be set aside.
        """
        set_aside = _failure(task, episode_id, Quarantined("start", _SET_ASIDE), attempts=0)
        for _ in range(self._config.attempts):
            if task.id in self.quarantined:
                return set_aside
            try:
                async with self._leased() as env:
                    if task.id in self.quarantined:
                        return set_aside
                    trajectory = await episode(env)
            except ArpoFault as error:
                self._count(error)
                fault = error
            else:
                del self._failed_in_a_row[task.id]
                return trajectory
        if isinstance(fault, EnvError):
            self._failed_in_a_row[task.id] += 1
        return _failure(task, episode_id, fault, self._config.attempts)

    @asynccontextmanager
    async def _leased(self) -> AsyncIterator[Env]:
        async with self._source.lease() as leased:
            env = GuardedEnv(leased, self._config)
            try:
                yield env
            finally:
                try:
                    await env.close()
                except EnvError as fault:
                    self._count(fault)

    def _count(self, fault: ArpoFault) -> None:
        self.faults[f"{fault.where}:{type(fault).__name__}"] += 1


def _failure(task: Task, episode_id: str, fault: ArpoFault, attempts: int) -> Failure:
    return Failure(
        episode_id=episode_id,
        task_id=task.id,
        kind=type(fault).__name__,
        where=fault.where,
        message=fault.message,
        attempts=attempts,
    )


def _checked_observation(where: str, value: Observation) -> Observation:
    if not isinstance(value, Observation):
        raise EnvError(where, f"gave {type(value).__name__}, not an Observation")
    if not value.screenshot.png.startswith(PNG_HEADER):
        raise EnvError(where, "the screenshot is not a PNG")
    # A torn picture found later would fail every episode that shares its prefill.
    try:
        Image.open(io.BytesIO(value.screenshot.png)).verify()
    except (OSError, SyntaxError) as error:
        raise EnvError(where, "the screenshot is a damaged PNG") from error
    return value


def _checked_score(value: float) -> float:
    if not isinstance(value, Real) or not 0.0 <= value <= 1.0:
        raise EnvError("evaluate", f"gave {value!r}, not a number in [0, 1]")
    return float(value)
