import asyncio
import itertools

import pytest

from arpo.actions import Action, Hotkey, Wait
from arpo.config import EnvConfig
from arpo.envs.check import check_env, every_action
from arpo.errors import EnvError
from arpo.testing import FakeEnv, failing, hanging, lying, screenshot, task
from arpo.types import Observation, Screenshot, StepResult
from env_hosts import FAKE
from pngs import corrupt, plain

CONFIG = EnvConfig(name=FAKE, start_seconds=0.2, step_seconds=0.2, evaluate_seconds=0.2)
TASKS = [task("a"), task("b")]


def broken(factory, tasks=TASKS):
    """Return {check: detail} of the failed checks."""
    checks = asyncio.run(check_env(factory, tasks, CONFIG))
    return {check.name: check.detail for check in checks if not check.ok}


def test_a_good_environment_passes_every_check():
    checks = asyncio.run(check_env(FakeEnv, TASKS, CONFIG))
    assert [str(check) for check in checks if not check.ok] == []
    assert len(checks) == 8


def test_every_kind_of_action_is_tried():
    kinds = {type(action) for action in every_action(56, 56)}
    assert kinds == set(Action.__args__)


@pytest.mark.parametrize("at", ["start", "step", "evaluate", "close"])
def test_faults_and_hangs_are_found(at):
    assert any(f"chaos at {at}" in detail for detail in broken(failing(FakeEnv, at, times=99)).values())
    assert any(
        "no answer within 0.2 s" in detail for detail in broken(hanging(FakeEnv, at, times=1)).values()
    )


def test_an_invalid_score_is_found():
    assert (
        "evaluate: returned None"
        in broken(lying(FakeEnv, None))["evaluate() returns a number in [0, 1] and changes nothing"]
    )


class Refusing(FakeEnv):
    async def step(self, actions):
        if isinstance(actions[0], Hotkey):
            raise EnvError("step", "no keyboard")
        return await super().step(actions)


def test_refusing_an_action_is_allowed_and_crashing_is_not():
    class Crashing(FakeEnv):
        async def step(self, actions):
            if isinstance(actions[0], Hotkey):
                raise KeyError("ctrl")
            return await super().step(actions)

    assert broken(Refusing) == {}
    found = broken(Crashing)["every action is executed or raises EnvError"]
    assert found.startswith("Hotkey(keys=('ctrl', 'a')) raised KeyError")


def test_a_screen_that_changes_size_is_found():
    class Growing(FakeEnv):
        async def step(self, actions):
            return StepResult(observation=Observation(screenshot=screenshot(0, (60, 60))))

    assert broken(Growing)["the screen size stays the same"] == (
        "step: the screenshot is 60x60, must be 56x56, the size of the first one of the episode"
    )


@pytest.mark.parametrize("png", [plain()[:40], corrupt(plain())])
def test_a_damaged_screenshot_is_found(png):
    class Torn(FakeEnv):
        async def start(self, task):
            return Observation(screenshot=Screenshot.of(png))

    found = broken(Torn)["every task starts and returns a screenshot"]
    assert found.startswith("start: the screenshot is a damaged PNG")


def test_a_class_that_cannot_be_created_is_found():
    class NeedsMore(FakeEnv):
        def __init__(self, address):
            super().__init__()

    findings = broken(NeedsMore)
    assert len(findings) == 8
    assert all("missing 1 required positional argument: 'address'" in one for one in findings.values())


def test_evaluating_twice_must_not_change_the_score():
    class Forgetful(FakeEnv):
        async def evaluate(self):
            self.calls.append("evaluate")
            return 0.5 / len(self.calls)

    assert (
        "three calls returned"
        in broken(Forgetful)["evaluate() returns a number in [0, 1] and changes nothing"]
    )


def test_environments_that_share_state_are_found():
    typed: list[Action] = []

    class Shared(FakeEnv):
        async def start(self, task):
            typed.clear()
            return await super().start(task)

        async def step(self, actions):
            typed.extend(action for action in actions if action != Wait())
            return await super().step(actions)

        async def evaluate(self):
            return 0.5 if typed else 0.0

    assert broken(Shared) == {
        "two environments do not affect each other": "the score is 0.0 alone, but 0.5 while another one runs"
    }


def test_randomness_and_free_scores_are_warnings():
    shades = itertools.count()

    class Dice(FakeEnv):
        async def start(self, task):
            return Observation(screenshot=screenshot(next(shades) % 256))

        async def evaluate(self):
            return 1.0

    checks = asyncio.run(check_env(Dice, TASKS, CONFIG))
    warned = [str(check) for check in checks if not check.ok]
    assert warned == [
        "warn  a task always starts with the same screen: a: two starts showed different screens",
        "warn  doing nothing does not solve a feasible task: a: scores 1 right after start",
    ]
