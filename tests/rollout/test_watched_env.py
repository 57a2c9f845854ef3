import asyncio

from arpo.actions import Wait
from arpo.rollout.watched_env import WatchedEnv
from arpo.testing import FakeEnv, screenshot, task
from arpo.types import Observation, StepResult


class Shown(FakeEnv):
    """Shows the given screenshots, one after the other."""

    def __init__(self, *shots):
        super().__init__()
        self.shots = iter(shots)

    async def start(self, task):
        return Observation(screenshot=next(self.shots))

    async def step(self, actions):
        return StepResult(observation=Observation(screenshot=next(self.shots)), terminated=True)


def test_each_distinct_screenshot_is_reported_once_with_the_one_before_it():
    first, second, third = (screenshot(shade) for shade in (1, 2, 3))
    reported = []
    env = WatchedEnv(Shown(first, second, first, third), lambda *pair: reported.append(pair))

    async def play():
        assert (await env.start(task("t"))).screenshot is first
        results = [await env.step((Wait(),)) for _ in range(3)]
        assert [result.observation.screenshot for result in results] == [second, first, third]
        assert results[0].terminated
        assert await env.evaluate() == 0.0
        await env.close()

    asyncio.run(play())
    assert reported == [(first, None), (second, first), (third, second)]
