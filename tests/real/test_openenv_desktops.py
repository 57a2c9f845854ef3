"""The client of the package `openenv` on light desktops of `arpo env-host --openenv`."""

import asyncio
import signal

import pytest

from arpo.tasks.lists import load_tasks
from env_hosts import HostCommand
from openenv_server import TOKEN, PackageEnv
from osworld_files import PYTHON
from player import play
from solvers import own

TASKS = load_tasks("osworld:train")[:10]


@pytest.fixture(scope="module")
def host(tmp_path_factory, host_config):
    folder = tmp_path_factory.mktemp("host")
    words = ["osworld_local", "--openenv", "--slots", "2", "--listen", "127.0.0.1:0"]
    settings = {"osworld.python": PYTHON, "osworld.cache": folder, "rollout.max_steps": 500}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ARPO_HOST_TOKEN", TOKEN)
        command = HostCommand(folder, *words, *(f"--{key}={value}" for key, value in settings.items()))
    yield command.address
    command.end(signal.SIGTERM)


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, id=task.id, marks=[pytest.mark.full] if n > 1 else [])
        for n, task in enumerate(TASKS)
    ],
)
def test_a_scripted_client_of_the_package_solves_a_desktop_task(task, host, tmp_path):
    async def solved():
        env = PackageEnv(host, tmp_path)
        try:
            await play(env, (await env.start(task)).screenshot, own.SOLUTIONS[task.id])
            return await env.evaluate()
        finally:
            await env.close()

    assert asyncio.run(solved()) == 1.0
