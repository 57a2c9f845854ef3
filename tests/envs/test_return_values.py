"""A wrong return value is a fault that names it, the line of the method, and the right value."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from arpo.config import EnvConfig
from arpo.envs.pool import GuardedEnv
from arpo.errors import EnvError
from arpo.testing import FakeEnv, screenshot, task
from arpo.types import Observation, Screenshot, StepResult
from env_hosts import FAKE

HERE = Path(__file__).relative_to(Path.cwd())
SEEN = Observation(screenshot=screenshot(0))
IMAGE: Any = Image.new("RGB", (56, 56))
PICTURE: Any = screenshot(0)
SAVE = 'PNG bytes of a PIL image: `buffer = io.BytesIO(); image.save(buffer, "PNG"); png = buffer.getvalue()`'
EXAMPLE = "see examples/doorbell.py"


class Returns(FakeEnv):
    """Returns `value` from the method `at`."""

    def __init__(self, at, value):
        super().__init__()
        self.at, self.value = at, value

    async def start(self, task):
        return self.value if self.at == "start" else await super().start(task)

    async def step(self, actions):
        return self.value if self.at == "step" else await super().step(actions)

    async def evaluate(self):
        return self.value if self.at == "evaluate" else await super().evaluate()


def fault(env):
    """The message and place of the first fault of an episode."""

    async def play():
        guarded = GuardedEnv(env, EnvConfig(name=FAKE))
        await guarded.start(task("a"))
        await guarded.step(())
        await guarded.evaluate()
        await guarded.close()

    with pytest.raises(EnvError) as caught:
        asyncio.run(play())
    return caught.value.where, caught.value.message, caught.value.place


STEP_RESULT = "must return StepResult(observation=…, terminated=…): see examples/doorbell.py"
OBSERVATION = "Observation(screenshot=Screenshot.of(png))"
SCORE = "not a number in [0, 1]: return 1.0 if the task is solved and 0.0 if not"
ARRAY = f"first `image = Image.fromarray(array)`; {SAVE}"
INNER = "the observation of its StepResult is"


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        ("step", (SEEN, 0.0, False, {}), f"returned a tuple, {STEP_RESULT}"),
        ("step", SEEN, f"returned an Observation, {STEP_RESULT}"),
        ("step", StepResult(observation=IMAGE), f"{INNER} an Image of PIL, must be {OBSERVATION}: {SAVE}"),
        (
            "step",
            StepResult(observation=PICTURE),
            f"{INNER} a Screenshot, must be {OBSERVATION}: {EXAMPLE}",
        ),
        ("start", None, f"returned None, must return {OBSERVATION}: {EXAMPLE}"),
        ("start", b"\x89PNG", f"returned bytes, must return {OBSERVATION}: {EXAMPLE}"),
        ("start", IMAGE, f"returned an Image of PIL, must return {OBSERVATION}: {SAVE}"),
        ("start", numpy.zeros((8, 8)), f"returned a ndarray of numpy, must return {OBSERVATION}: {ARRAY}"),
        (
            "start",
            Observation(screenshot=IMAGE),
            f"the screenshot of its Observation is an Image of PIL, must be Screenshot.of(png): {SAVE}",
        ),
        ("evaluate", 100, f"returned 100, {SCORE}"),
        ("evaluate", None, f"returned None, {SCORE}"),
        ("evaluate", float("nan"), f"returned nan, {SCORE}"),
    ],
)
def test_a_wrong_value_is_named_with_the_line_and_the_right_value(at, value, message):
    method = getattr(Returns, at)
    assert fault(Returns(at, value)) == (at, message, f"{HERE}:{inspect.findsource(method)[1] + 1}")


def test_a_screenshot_of_an_image_says_how_to_get_its_bytes():
    class Shows(FakeEnv):
        async def start(self, task):
            return Observation(screenshot=Screenshot.of(IMAGE))

    where, message, place = fault(Shows())
    assert (where, message) == (
        "start",
        f"TypeError: Screenshot.of takes the bytes of a PNG, not Image; {SAVE}",
    )
    assert place == f"{HERE}:{inspect.findsource(Shows.start)[1] + 2}"


def test_all_methods_that_are_not_async_are_one_fault():
    class Plain(FakeEnv):
        def step(self, actions):
            return StepResult(observation=SEEN)

        def evaluate(self):
            return 0.0

    message = "not async: step, evaluate: write `async def step(self, …)`, see examples/doorbell.py"
    assert fault(Plain()) == ("step", message, f"{HERE}:{inspect.findsource(Plain.step)[1] + 1}")


def test_a_method_that_returns_an_awaitable_is_allowed():
    class Delegates(FakeEnv):
        def step(self, actions):
            return super().step(actions)

    asyncio.run(GuardedEnv(Delegates(), EnvConfig(name=FAKE)).step(()))


def test_a_damaged_picture_names_the_method():
    where, message, place = fault(Returns("start", Observation(screenshot=Screenshot.of(b"GIF89a"))))
    assert (where, message) == ("start", 'the screenshot is not a PNG: save the image with the format "PNG"')
    assert place == f"{HERE}:{inspect.findsource(Returns.start)[1] + 1}"
