"""Our client with a server of the package `openenv`, and its client with `arpo env-host --openenv`."""

import asyncio

import pytest

from arpo.actions import Click, Point, PressHome
from arpo.cli import main
from arpo.config import Config, EnvConfig
from arpo.envs.factory import resolve_env
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.errors import EnvError, UserError
from arpo.png import rgb
from arpo.tasks.lists import load_tasks
from arpo.types import Failure
from desks import solution
from env_hosts import HostCommand
from openenv_server import TOKEN, PackageEnv, buttons

pytestmark = pytest.mark.slow
MAPPING = """
screenshot = "png"
goal = "goal"
[actions]
Click = { kind = "click", x = "{x}", y = "{y}" }
PressHome = { kind = "end" }
"""


@pytest.fixture(scope="module")
def url():
    with buttons(sessions=16) as address:
        yield address


@pytest.fixture(params=["png", "pixels"])
def mapping(tmp_path, request):
    file = tmp_path / "buttons.toml"
    array = 'screenshot = "pixels"\nshape = "shape"'
    file.write_text(MAPPING.replace('screenshot = "png"', array) if request.param == "pixels" else MAPPING)
    return file


def button(screenshot):
    """The first dark pixel."""
    image = rgb(screenshot)
    points = ((x, y) for y in range(image.height) for x in range(image.width))
    return Point(*next(point for point in points if image.getpixel(point) == (0, 0, 0)))


def pool_at(url, mapping, parallel):
    config = EnvConfig(name=f"openenv:{url}#{mapping}", parallel=parallel, attempts=1)
    return EnvPool(LocalEnvs(resolve_env(Config(env=config)), parallel), config)


def test_16_sessions_at_once_and_a_killed_one_costs_its_own_episode(url, mapping):
    pool = pool_at(url, mapping, 16)
    tasks = load_tasks(f"openenv:{url}#train")
    all_started = asyncio.Barrier(16)

    async def episode(env, number):
        first = await env.start(tasks[number % 8])
        assert first.instruction == tasks[number % 8].instruction == f"Click the button of train {number % 8}"
        await all_started.wait()
        await asyncio.sleep(4)  # the server ends a session that answers no ping for 3 s
        if number == 5:
            await env.step((PressHome(),))
        beside = await env.step((Click(point=Point(63, 47)),))
        assert (beside.terminated, await env.evaluate()) == (False, 0.0)
        solved = await env.step((Click(point=button(first.screenshot)),))
        assert solved.terminated
        return await env.evaluate()

    async def play():
        runs = (pool.run(tasks[n % 8], str(n), lambda env, n=n: episode(env, n)) for n in range(16))
        return await asyncio.gather(*runs)

    results = asyncio.run(play())
    assert isinstance(results[5], Failure)
    assert (results[5].where, results[5].host) == ("step", url)
    assert "the server has closed the session" in results[5].message
    assert results[:5] + results[6:] == [1.0] * 15


def test_tasks_come_from_the_splits_of_the_server(url):
    assert [(task.id, task.domain) for task in load_tasks(f"openenv:{url}#test")] == [
        (f"test-{index:04}", "test") for index in range(4)
    ]
    with pytest.raises(UserError, match=r"no split 'tests'; write openenv:.*#SPLIT with one of: train, test"):
        load_tasks(f"openenv:{url}#tests")


def test_check_env_accepts_the_environment(url, mapping, capsys):
    assert main(["check-env", f"openenv:{url}#{mapping}", "--tasks", f"openenv:{url}#test"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("\nok ") + printed.startswith("ok ") == 9, printed
    assert "screenshots of 64x48" in printed


def test_check_env_without_tasks_names_the_splits(url, mapping, capsys):
    assert main(["check-env", f"openenv:{url}#{mapping}"]) == 2
    assert "with one of: train, test" in capsys.readouterr().err


def test_a_full_server_says_how_many_sessions_it_has(mapping):
    async def play(factory):
        envs = [factory(), factory()]
        try:
            await envs[0].start(task)
            await envs[1].start(task)
        finally:
            for env in envs:
                await env.close()

    with buttons(sessions=1) as url:
        task = load_tasks(f"openenv:{url}#test")[0]
        factory = resolve_env(Config(env=EnvConfig(name=f"openenv:{url}#{mapping}")))
        with pytest.raises(EnvError, match=r"1/1 .*: lower env.parallel to its sessions"):
            asyncio.run(play(factory))


def test_the_client_of_the_package_solves_tasks_of_desk(tmp_path, monkeypatch):
    tasks = load_tasks("desk:32")[:10]

    async def play(task):
        env = PackageEnv(host.address, tmp_path)
        try:
            assert (await env.start(task)).instruction == task.instruction
            for _, action in solution(task):
                result = await env.step((action,))
            assert result.terminated
            return await env.evaluate()
        finally:
            await env.close()

    async def play_all():
        return await asyncio.gather(*map(play, tasks))

    monkeypatch.setenv("ARPO_HOST_TOKEN", TOKEN)
    host = HostCommand(tmp_path, "desk", "--openenv", "--slots", "10", "--listen", "127.0.0.1:0")
    try:
        assert asyncio.run(play_all()) == [1.0] * 10
    finally:
        host.end()
