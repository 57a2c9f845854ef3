"""Gymnasium environments in worker processes, unchanged."""

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import gym_games
from arpo.actions import Click, Finished, Hover, Point, Type
from arpo.config import Config, EnvConfig
from arpo.config.settings import GymnasiumConfig
from arpo.config.task_set_names import heldout_sets
from arpo.envs.check import check_env
from arpo.envs.factory import env_source, plays_desk, resolve_env
from arpo.envs.gymnasium.env import GymnasiumEnvs
from arpo.envs.gymnasium.tasks import read_task
from arpo.envs.pool import GuardedEnv
from arpo.errors import EnvError, EnvTimeout, UserError
from arpo.tasks.lists import check_disjoint, load_tasks
from arpo.types import Task


@pytest.fixture(autouse=True)
def in_the_folder_of_the_games(monkeypatch):
    monkeypatch.chdir(Path(gym_games.__file__).parent)


def recipe(name, actions="", **env):
    return Config(
        env=EnvConfig(name=f"gymnasium:gym_games:{name}-v0", **env),
        gymnasium=GymnasiumConfig(actions=actions),
    )


def task(seed=0, **parameters):
    step = {"type": "gymnasium", "parameters": {"seed": seed, **parameters}}
    return Task(id=f"t-{seed}", instruction="Play", snapshot="", config=(step,), evaluator={})


def play(config, episode):
    """The result of episode(make), where make() returns a new environment with timeouts."""

    async def scenario():
        envs = GymnasiumEnvs(config)
        made = []

        def make():
            made.append(GuardedEnv(envs(), config.env))
            return made[-1]

        try:
            return await episode(make)
        finally:
            for env in made:
                await env.close()
            envs.close()

    return asyncio.run(scenario())


def square(observation):
    """The middle of the white square."""
    with Image.open(io.BytesIO(observation.screenshot.png)) as image:
        rows, columns = np.nonzero(np.asarray(image)[:, :, 0] == 255)
    return Point(int(columns[0]) + 4, int(rows[0]) + 4)


@pytest.mark.parametrize("name", ["Target", "FlatTarget", "FloatTarget"])
def test_a_click_on_a_pixel_solves_the_task(name):
    async def episode(make):
        env = make()
        first = await env.start(task(seed=3))
        assert first.screenshot.size == (gym_games.WIDTH, gym_games.HEIGHT)
        assert first.instruction.startswith("Click the square")
        idle = await env.step((Hover(point=Point(1, 1)), Type(text="a"), Finished()))
        assert idle.observation.screenshot == first.screenshot
        assert (idle.terminated, await env.evaluate()) == (False, 0.0)
        result = await env.step((Click(point=square(first)), Click(point=Point(0, 0))))
        return result.terminated, await env.evaluate()

    assert play(recipe(name), episode) == (True, 1.0)


def test_a_miss_changes_the_screen_and_the_end_of_time_ends_the_episode():
    async def episode(make):
        env = make()
        first = await env.start(task())
        corner = Point(0, 0) if square(first).x > 8 else Point(47, 31)
        missed = await env.step((Click(point=corner),))
        assert missed.observation.screenshot != first.screenshot
        last = await env.step((Click(point=corner),))
        return missed.terminated, last.terminated, await env.evaluate()

    assert play(recipe("Target"), episode) == (False, True, 0.0)


def test_a_worker_is_used_again_and_two_episodes_have_two():
    async def episode(make):
        first, second, third = make(), make(), make()
        names = [(await first.start(task())).instruction, (await second.start(task())).instruction]
        await first.close()
        names.append((await third.start(task(seed=1))).instruction)
        return names

    one, two, three = play(recipe("Target"), episode)
    assert one != two
    assert three == one


def test_the_arguments_of_a_task_reach_the_environment_and_the_sum_is_clipped():
    async def scored(make, reward):
        env = make()
        first = await env.start(task(make={"reward": reward}))
        await env.step((Click(point=square(first)),))
        return await env.evaluate()

    async def episode(make):
        return [await scored(make, reward) for reward in (0.5, 3, -1)]

    assert play(recipe("Target"), episode) == [0.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("crash", "fault", "message"),
    [
        ("exit", EnvError, "the worker died: exit code 7"),
        ("raise", EnvError, "ValueError: no such wall"),
        ("hang", EnvTimeout, "no answer within 2 s"),
    ],
)
def test_a_fault_costs_its_episode_and_the_next_one_has_a_new_worker(crash, fault, message):
    async def episode(make):
        env = make()
        broken = await env.start(task(make={"crash": crash}))
        with pytest.raises(fault, match=message) as error:
            await env.step((Click(point=Point(0, 0)),))
        if crash == "raise":
            assert error.value.place.startswith("gym_games.py:")
        await env.close()
        return broken.instruction, (await make().start(task())).instruction

    before, after = play(recipe("Target", step_seconds=2 if crash == "hang" else 60), episode)
    assert before != after


def test_a_function_of_the_user_converts_actions():
    async def episode(make):
        env = make()
        await env.start(task())
        await env.step((Click(point=Point(0, 0)), Type(text="push")))
        unpulled = await env.evaluate()
        await env.step((Type(text="pull"),))
        return unpulled, await env.evaluate()

    assert play(recipe("Lever", actions="gym_games:typed"), episode) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            recipe("Lever"),
            r"its action space Discrete\(2\) has no pixels of its 48x32 pictures.*set gymnasium",
        ),
        (recipe("Lever", actions="gym_games:tped"), "gym_games has no function tped"),
        (recipe("Blind"), r"render\(\) .* gave None, must give uint8"),
        (recipe("Targt"), "Environment `Targt` doesn't exist"),
        (Config(env=EnvConfig(name="gymnasium:no_games:A-v0")), "no_games"),
        (
            Config(env=EnvConfig(name="gymnasium:A-v0"), gymnasium=GymnasiumConfig(python="no-python")),
            "gymnasium.python = 'no-python': no such program",
        ),
    ],
)
def test_what_cannot_be_played_is_one_error_before_the_first_episode(config, message):
    with pytest.raises(UserError, match=message):
        resolve_env(config)


def test_the_conformance_suite_passes():
    config = recipe("Target")
    envs = GymnasiumEnvs(config)
    tasks = load_tasks(config.env.name)[:2]
    try:
        checks = asyncio.run(check_env(envs, tasks, config.env))
    finally:
        envs.close()
    assert [str(check) for check in checks if not check.ok and check.required] == []


def test_a_list_has_instances_for_training_and_others_held_out():
    sources = heldout_sets("gymnasium:heldout/m:A-v0,ALE/B-v0,more.json")
    assert list(sources.values()) == ["gymnasium:heldout/m:A-v0,ALE/B-v0", "more.json"]
    train, heldout = load_tasks("gymnasium:m:A-v0,ALE/B-v0"), load_tasks("gymnasium:heldout/m:A-v0,ALE/B-v0")
    assert (len(train), len(heldout)) == (64, 32)
    assert [one.id for one in train[:3]] == ["A-v0-0", "ALE-B-v0-0", "A-v0-1"]
    check_disjoint(train, heldout)


def test_a_task_of_webarena_is_one_instance_and_not_held_out_from_itself():
    train = load_tasks("browsergym:webarena.310,webarena.311")
    assert [one.id for one in train] == ["webarena.310-0", "webarena.311-0"]
    check_disjoint(train, load_tasks("browsergym:heldout/webarena.4"))
    with pytest.raises(UserError, match=r"held-out task 'webarena.310-0' is also training task"):
        check_disjoint(train, load_tasks("browsergym:heldout/webarena.310"))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ({"type": "open"}, r'task t: config\[0\]: must be the only step, {"type": "gymnasium"'),
        ({"type": "gymnasium", "parameters": {"sed": 1}}, "unknown key 'sed'; the keys are: id, seed"),
        ({"type": "gymnasium", "parameters": {"seed": "1"}}, "seed: must be a whole number, not '1'"),
    ],
)
def test_a_bad_task_is_an_error_with_its_place(step, message):
    bad = Task(id="t", instruction="", snapshot="", config=(step,), evaluator={})
    with pytest.raises(UserError, match=message):
        read_task(bad, "A-v0")


def test_the_name_is_no_module_of_the_user():
    config = recipe("Target")
    assert not plays_desk(config.env)
    assert env_source(config.env.name) == ""
