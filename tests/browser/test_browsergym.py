"""BrowserGym with Debian's Chromium: scripted actions solve tasks of MiniWoB++; no process stays behind."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from apart import run_apart
from arpo.actions import Action, Click, Direction, Drag, Finished, Hotkey, Point, Scroll, Type
from arpo.config import Config, EnvConfig
from arpo.envs.factory import resolve_env
from arpo.envs.gymnasium.env import GymnasiumEnvs
from arpo.errors import EnvError, UserError
from arpo.tasks.lists import load_tasks
from processes import descendants, parents

# Places in the screenshots of seed 0.
SOLUTIONS: dict[str, list[Action]] = {
    "click-test-2": [Click(point=Point(67, 180))],
    "click-dialog": [Click(point=Point(164, 115))],
    "enter-text": [
        Click(point=Point(105, 106)), Type(text="Myron"), Hotkey(keys=("tab",)), Hotkey(keys=("enter",)),
    ],
    "scroll-text-2": [
        Scroll(point=Point(100, 170), direction=Direction.UP, amount=30), Click(point=Point(74, 270)),
    ],
    "drag-box": [Drag(start=Point(106, 121), end=Point(172, 178)), Click(point=Point(73, 259))],
}  # fmt: skip
GOALS = {
    "click-test-2": "Click button ONE.",
    "enter-text": 'Enter "Myron" into the text field and press Submit.',
}


def recipe(name):
    return Config(env=EnvConfig(name=f"browsergym:{name}"))


def first_instance(name):
    return load_tasks(f"browsergym:miniwob.{name}")[0]


async def play(envs, name):
    """Whether doing nothing ends the episode, whether the solution does, and the score."""
    env = envs()
    try:
        first = await env.start(first_instance(name))
        assert first.instruction == GOALS.get(name, first.instruction) != ""
        before = await env.step(())
        assert (before.observation.screenshot, await env.evaluate()) == (first.screenshot, 0.0)
        results = [await env.step((action,)) for action in SOLUTIONS[name]]
        assert {result.observation.screenshot.size for result in results} == {first.screenshot.size}
        return before.terminated, results[-1].terminated, await env.evaluate()
    finally:
        await env.close()


def test_scripts_solve_five_tasks_and_leave_no_process():
    async def scenario():
        before = descendants(os.getpid())
        envs = GymnasiumEnvs(recipe("miniwob"))
        slots = asyncio.Semaphore(2)

        async def one(name):
            async with slots:
                return await play(envs, name)

        try:
            results = await asyncio.gather(*map(one, SOLUTIONS))
            assert len(envs._workers._idle) == 2
            started = descendants(os.getpid()) - before
        finally:
            envs.close()
        return dict(zip(SOLUTIONS, results, strict=True)), started

    played, started = run_apart(scenario())
    assert played == dict.fromkeys(SOLUTIONS, (False, True, 1.0))
    assert len(started) > 10
    assert started & parents().keys() == set()


def is_worker(pid):
    return b"worker.py" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_killed_worker_costs_its_episode_and_takes_its_browsers_along():
    async def scenario():
        envs = GymnasiumEnvs(recipe("miniwob"))
        env = envs()
        try:
            await env.start(first_instance("click-test-2"))
            assert env._worker is not None
            started = descendants(env._worker._child.process.pid)
            [worker] = filter(is_worker, started)
            os.kill(worker, signal.SIGKILL)
            with pytest.raises(EnvError, match="the worker died: killed by SIGKILL"):
                await env.step((Finished(content="done"),))
            await env.close()
            return started, started & parents().keys()
        finally:
            envs.close()

    started, left = run_apart(scenario())
    assert len(started) > 5
    assert left == set()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("miniwob.click-tst", "Did you mean: `miniwob.click-test`"),
        ("webarena", "no module browsergym.webarena in .*: pip install browsergym-webarena"),
    ],
)
def test_what_is_not_there_is_one_error(name, message):
    with pytest.raises(UserError, match=message):
        resolve_env(recipe(name))
