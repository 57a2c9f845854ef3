"""OSWorld's own tasks with the real DesktopEnv, on light desktops and with the Docker provider."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from arpo.actions import Click, Fail, Finished, Hotkey, Point, Type, Wait
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.check import check_env
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.fork_server import fork_server
from arpo.envs.pool import GuardedEnv
from arpo.errors import EnvError
from arpo.testing import screenshot
from arpo.types import Task
from osworld_files import PYTHON, ROOT, osworld_task
from processes import descendants, parents, wait_until

SUPPORT = ROOT / "tests" / "support"
SETTINGS = EnvConfig(name="osworld", width=1280, height=800, start_seconds=120, evaluate_seconds=120)
LIGHT = OSWorldConfig(python=str(PYTHON))
RENAME, INFEASIBLE = "os/e0df059f", "os/c288e301"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="desktop-env is not installed: make osworld")


async def open_terminal(env):
    """Presses the shortcut and waits until the screen has changed and is stable."""
    before = (await env.step((Wait(),))).observation.screenshot
    shown = (await env.step((Hotkey(keys=("ctrl", "alt", "t")),))).observation.screenshot
    for _ in range(30):
        last, shown = shown, (await env.step((Wait(),))).observation.screenshot
        if last == shown != before:
            return
    raise AssertionError("no terminal appeared")


async def type_lines(env, *lines):
    for line in lines:
        await env.step((Type(text=line, submit=True),))


@asynccontextmanager
async def desktop(task, config=LIGHT):
    env = OSWorldEnv(config, SETTINGS)
    guarded = GuardedEnv(env, SETTINGS)
    try:
        await guarded.start(task)
        yield env
    finally:
        await guarded.close()


def command_task(command):
    """A task that is solved if the command prints "yes" in the guest."""
    return Task(
        id="t",
        instruction="",
        snapshot="",
        config=(),
        evaluator={
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": command, "shell": True},
            "expected": {"type": "rule", "rules": {"expected": "yes\n"}},
        },
    )


async def rename_score(solve):
    async with desktop(osworld_task(RENAME)) as env:
        if solve:
            await open_terminal(env)
            await type_lines(env, "mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2")
        return await env.evaluate()


def test_parallel_desktops_get_their_own_scores():
    async def all_desktops():
        return await asyncio.gather(*(rename_score(number % 2 == 0) for number in range(4)))

    assert asyncio.run(all_desktops()) == [1.0, 0.0, 1.0, 0.0]


def test_an_infeasible_task_is_solved_by_fail():
    async def ended(action):
        async with desktop(osworld_task(INFEASIBLE)) as env:
            await env.step((action,))
            return await env.evaluate()

    assert [asyncio.run(ended(action)) for action in (Fail(), Finished(), Wait())] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["chrome/030eeff7", "vlc/8ba5ae7a", "libreoffice_impress/2cd43775"])
def test_an_untouched_application_scores_zero(name):
    async def untouched():
        async with desktop(osworld_task(name)) as env:
            return await env.evaluate()

    assert asyncio.run(untouched()) == 0.0


@pytest.mark.parametrize(
    "text", ["a<b> 'c' \"d\" \\n {e}", "pyautogui.typewrite('<')", "pyautogui.press('<')"]
)
def test_text_is_typed_unchanged(text):
    async def typing():
        task = command_task(["python3", "-c", _SAME, text])
        task.evaluator["result"]["shell"] = False
        async with desktop(task) as env:
            await open_terminal(env)
            await type_lines(env, "cat > ~/typed", text)
            await env.step((Hotkey(keys=("ctrl", "d")),))
            return await env.evaluate()

    assert asyncio.run(typing()) == 1.0


_SAME = """
import pathlib, sys
found = pathlib.Path("~/typed").expanduser().read_text()
print("yes" if found == sys.argv[1] + chr(10) else ascii(found))
"""


def test_it_passes_the_conformance_suite():
    tasks = [osworld_task(RENAME), osworld_task(INFEASIBLE)]
    checks = asyncio.run(check_env(lambda: OSWorldEnv(LIGHT, SETTINGS), tasks, SETTINGS))
    assert [str(check) for check in checks if check.required and not check.ok] == []


def test_a_misspelt_getter_fails_before_booting():
    async def start():
        task = command_task("true")
        task.evaluator["result"]["type"] = "vm_comand_line"
        async with desktop(task):
            pass

    with pytest.raises(EnvError) as caught:
        asyncio.run(start())
    assert caught.value.message == (
        "task t: evaluator.result.type = 'vm_comand_line': desktop-env has no getter get_vm_comand_line "
        "(did you mean 'vm_command_line'?)"
    )


def test_a_failed_setup_step_is_named():
    async def start():
        step = {"type": "launch", "parameters": {"command": ["no-such-program"]}}
        task = command_task("true")
        async with desktop(Task(**{**_fields(task), "config": (step,)})):
            pass

    with pytest.raises(EnvError, match=r"config step 1 of 1 \(launch\): Failed to launch application"):
        asyncio.run(start())


def _fields(task):
    return {name: getattr(task, name) for name in Task.__dataclass_fields__}


def test_a_killed_guest_is_an_error():
    async def killed(at):
        async with desktop(osworld_task(RENAME)) as env:
            guest = descendants(env.client.worker.pid)
            for process in guest:
                with suppress(ProcessLookupError):  # it ended with another process
                    os.kill(process, signal.SIGKILL)
            assert wait_until(lambda: not guest & set(parents()))
            with pytest.raises(EnvError) as caught:
                await (env.step((Click(point=Point(3, 4)),)) if at == "step" else env.evaluate())
            return caught.value.where

    assert [asyncio.run(killed(at)) for at in ("step", "evaluate")] == ["step", "evaluate"]


def test_a_killed_worker_ends_only_its_own_desktop():
    async def killed():
        async with desktop(osworld_task(RENAME)) as other, desktop(osworld_task(RENAME)) as env:
            worker, family = env.client.worker, descendants(env.client.worker.pid)
            assert len(family) > 3
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(EnvError, match="step: the worker died"):
                await env.step((Wait(),))
            await env.close()
            assert wait_until(lambda: not family & set(parents()))
            assert not worker.folder.exists()
            return await other.evaluate()

    assert asyncio.run(killed()) == 0.0


def test_a_hanging_worker_is_ended():
    async def hangs():
        async with desktop(osworld_task(RENAME)) as env:
            worker, family = env.client.worker, descendants(env.client.worker.pid)
            os.kill(worker.pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await env.evaluate()
            await env.close()
            assert worker.pid not in parents()
            assert wait_until(lambda: not family & set(parents()))

    asyncio.run(hangs())


def test_nothing_remains_after_the_process_is_killed():
    arguments = [{"python": str(PYTHON)}, {"name": "osworld"}, _fields(osworld_task(RENAME))]
    with subprocess.Popen(
        [sys.executable, SUPPORT / "osworld_holder.py", *map(json.dumps, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    ) as host:
        assert host.stdout is not None
        printed = json.loads(host.stdout.readline())
        family = descendants(host.pid)
        assert printed["worker"] in family and len(family) > 5
        host.kill()
    assert wait_until(lambda: not family & set(parents()))
    assert wait_until(lambda: not Path(printed["root"]).exists())


def test_docker_provider_of_desktop_env(tmp_path, monkeypatch):
    """desktop-env's own provider and life cycle; only the package `docker` is a fake."""
    (tmp_path / "Ubuntu.qcow2").touch()
    (tmp_path / "screen.png").write_bytes(screenshot(7, (1280, 800)).png)
    events = tmp_path / "events"
    monkeypatch.setenv("DOCKER_FAKE_EVENTS", str(events))
    monkeypatch.setenv("DOCKER_FAKE_SCREENSHOT", str(tmp_path / "screen.png"))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "fakes" / "docker_engine"))
    fork_server.cache_clear()  # a new fork server sees the new variables
    docker = OSWorldConfig(
        provider="docker", machine=str(tmp_path / "Ubuntu.qcow2"), python=str(PYTHON), pause=0
    )

    async def episode():
        task = command_task("test -e ~/it && echo yes")
        step = {"type": "launch", "parameters": {"command": ["gimp"]}}
        async with desktop(Task(**{**_fields(task), "config": (step,)}), docker) as env:
            result = await env.step((Click(point=Point(3, 4)),))
            return result.observation.screenshot.size, await env.evaluate()

    try:
        assert asyncio.run(episode()) == ((1280, 800), 0.0)
    finally:
        fork_server.cache_clear()
    assert events.read_text().splitlines() == [
        "run happysixd/osworld-docker Ubuntu.qcow2 ro",
        '/setup/launch {"command": ["gimp"], "shell": false}',
        "pause",
        "unpause",
        '/execute click(3, 4)"], "shell": false}',
        "pause",
        "unpause",
        '/execute {"command": "test -e ~/it && echo yes", "shell": true}',
        "pause",
        "unpause",
        "stop",
        "remove",
    ]
