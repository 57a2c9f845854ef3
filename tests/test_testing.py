"""The fakes in `arpo.testing`: screenshots, a scripted engine, misbehaving environments."""

import asyncio
import io

import pytest
from PIL import Image

from arpo.actions import Wait
from arpo.engines.base import Weights
from arpo.testing import FakeEnv, ScriptedEngine, failing, hanging, lying, screenshot, task
from arpo.types import Prompt, Sampling

SAMPLING = Sampling(temperature=1.0, max_tokens=4, seed=0)


def prompt(episode):
    return Prompt(episode_id=episode, token_ids=(1,), images=(), messages=())


def test_screenshots_are_images():
    shot = screenshot(200, (30, 20))
    assert shot.size == (30, 20)
    with Image.open(io.BytesIO(shot.png)) as image:
        assert image.getpixel((29, 19)) == 200
    assert screenshot(1) == screenshot(1) != screenshot(2)


def test_a_scripted_engine_counts_turns_by_episode():
    engine = ScriptedEngine(["ab", "c", "toolong"], lambda text: [ord(letter) for letter in text], end=0)

    async def main():
        await engine.load(Weights(version=5, handle=None))
        answers = [await engine.generate(prompt(episode), SAMPLING) for episode in "xyxx"]
        await engine.release("x")
        return [*answers, await engine.generate(prompt("x"), SAMPLING)]

    answers = asyncio.run(main())
    assert [answer.text for answer in answers] == ["ab", "ab", "c", "toolong", "ab"]
    assert answers[0].token_ids == (97, 98, 0)
    assert [answer.finish for answer in answers] == ["stop", "stop", "stop", "length", "stop"]
    assert answers[3].token_ids == tuple(b"tool")
    assert set(answers[0].versions) == {5}


def test_faults_are_counted_over_all_environments_of_a_factory():
    factory = failing(FakeEnv, "start", times=2)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="chaos at start"):
            asyncio.run(factory().start(task("t")))
    assert asyncio.run(factory().start(task("t"))).screenshot == screenshot(0)


def test_a_hanging_call_never_returns():
    async def main():
        async with asyncio.timeout(0.01):
            await hanging(FakeEnv, "step", times=1)().step((Wait(),))

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_an_invalid_score_leaves_the_other_calls_valid():
    env = lying(FakeEnv, None)()
    assert asyncio.run(env.start(task("t"))).screenshot == screenshot(0)
    assert asyncio.run(env.evaluate()) is None
