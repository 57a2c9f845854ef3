"""An environment whose screenshots are reported as soon as they are taken."""

from __future__ import annotations

from collections.abc import Callable

from arpo.actions import Action
from arpo.envs.base import Env, host_of
from arpo.types import Observation, Screenshot, StepResult, Task

OnScreenshot = Callable[[Screenshot, Screenshot | None], None]


class WatchedEnv:
    """Calls `on_screenshot(screenshot, previous)` once for each distinct screenshot of an episode.

    `previous` is the distinct one before it, None for the first.

    >>> WatchedEnv(env, store.prepare)  # the store encodes the screenshots while the episode goes on
    """

    def __init__(self, env: Env, on_screenshot: OnScreenshot) -> None:
        self.host = host_of(env)
        self._env = env
        self._on_screenshot = on_screenshot
        self._seen: set[str] = set()
        self._previous: Screenshot | None = None

    async def start(self, task: Task) -> Observation:
        return self._report(await self._env.start(task))

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        result = await self._env.step(actions)
        self._report(result.observation)
        return result

    async def evaluate(self) -> float:
        return await self._env.evaluate()

    async def close(self) -> None:
        await self._env.close()

    def _report(self, observation: Observation) -> Observation:
        screenshot = observation.screenshot
        if screenshot.sha256 not in self._seen:
            self._on_screenshot(screenshot, self._previous)
            self._seen.add(screenshot.sha256)
            self._previous = screenshot
        return observation
