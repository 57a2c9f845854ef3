"""OSWorld's own tasks through the real DesktopEnv: on light desktops, and with Docker's provider."""

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
from arpo.envs.osworld.fork_server import nursery
from arpo.envs.pool import GuardedEnv
from arpo.errors import EnvError
from arpo.testing import screenshot
from arpo.types import Task
from places import PYTHON, ROOT, osworld_task

sys.path.append(str(ROOT / "tests"))
from processes import descendants, parents, wait_until

FAKES = ROOT / "tests" / "fakes"
SETTINGS = EnvConfig(name="osworld", width=1280, height=800, start_seconds=120, evaluate_seconds=120)
LIGHT = OSWorldConfig(python=str(PYTHON))
RENAME, INFEASIBLE = "os/e0df059f", "os/c288e301"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="desktop-env is not installed: make osworld")


async def open_terminal(env):
    """As one who looks: presses the keys, and waits until something has come up and keeps still."""
    before = (await env.step((Wait(),))).observation.screenshot
    shown = (await env.step((Hotkey(keys=("ctrl", "alt", "t")),))).observation.screenshot
    for _ in range(30):
        last, shown = shown, (await env.step((Wait(),))).observation.screenshot
        if last == shown != before:
            return
    raise AssertionError("no terminal came up")


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


def told(command):
    """A task that asks the guest for the output of a command."""
    return Task(
        id="told",
        instruction="",
        snapshot="",
        config=(),
        evaluator={
            "func": "exact_match",
            "result": {"type": "vm_command_line", "command": command, "shell": True},
            "expected": {"type": "rule", "rules": {"expected": "yes\n"}},
        },
    )


async def renamed(do_it):
    async with desktop(osworld_task(RENAME)) as env:
        if do_it:
            await open_terminal(env)
            await type_lines(env, "mv ~/Desktop/todo_list_Jan_1 ~/Desktop/todo_list_Jan_2")
        return await env.evaluate()


def test_beside_each_other_the_one_that_did_it_scores_and_the_one_that_did_not_does_not():
    async def race():
        return await asyncio.gather(*(renamed(number % 2 == 0) for number in range(4)))

    assert asyncio.run(race()) == [1.0, 0.0, 1.0, 0.0]


def test_an_infeasible_task_wants_to_be_given_up():
    async def ended(action):
        async with desktop(osworld_task(INFEASIBLE)) as env:
            await env.step((action,))
            return await env.evaluate()

    assert [asyncio.run(ended(action)) for action in (Fail(), Finished(), Wait())] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("name", ["chrome/030eeff7", "vlc/8ba5ae7a", "libreoffice_impress/2cd43775"])
def test_an_application_that_nobody_touched_scores_nothing(name):
    async def untouched():
        async with desktop(osworld_task(name)) as env:
            return await env.evaluate()

    assert asyncio.run(untouched()) == 0.0


@pytest.mark.parametrize(
    "text", ["a<b> 'c' \"d\" \\n {e}", "pyautogui.typewrite('<')", "pyautogui.press('<')"]
)
def test_what_is_typed_arrives_as_it_is(text):
    async def typing():
        task = told(["python3", "-c", _SAME, text])
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


def test_a_misspelt_getter_is_told_before_anything_boots():
    async def start():
        task = told("true")
        task.evaluator["result"]["type"] = "vm_comand_line"
        async with desktop(task):
            pass

    with pytest.raises(EnvError) as caught:
        asyncio.run(start())
    assert caught.value.message == (
        "task told: evaluator.result.type = 'vm_comand_line': desktop-env has no getter get_vm_comand_line "
        "(did you mean 'vm_command_line'?)"
    )


def test_a_set_up_that_fails_is_named():
    async def start():
        step = {"type": "launch", "parameters": {"command": ["no-such-program"]}}
        task = told("true")
        async with desktop(Task(**{**_fields(task), "config": (step,)})):
            pass

    with pytest.raises(EnvError, match=r"config step 1 of 1 \(launch\): Failed to launch application"):
        asyncio.run(start())


def _fields(task):
    return {name: getattr(task, name) for name in Task.__dataclass_fields__}


def test_a_guest_that_is_killed_is_an_error_and_never_a_zero():
    async def killed(at):
        async with desktop(osworld_task(RENAME)) as env:
            guest = descendants(env.session.worker.pid)
            for process in guest:
                with suppress(ProcessLookupError):  # it went with another
                    os.kill(process, signal.SIGKILL)
            assert wait_until(lambda: not guest & set(parents()))
            with pytest.raises(EnvError) as caught:
                await (env.step((Click(point=Point(3, 4)),)) if at == "step" else env.evaluate())
            return caught.value.where

    assert [asyncio.run(killed(at)) for at in ("step", "evaluate")] == ["step", "evaluate"]


def test_a_worker_that_is_killed_takes_its_desktop_with_it_and_no_other():
    async def killed():
        async with desktop(osworld_task(RENAME)) as other, desktop(osworld_task(RENAME)) as env:
            worker, family = env.session.worker, descendants(env.session.worker.pid)
            assert len(family) > 3
            os.kill(worker.pid, signal.SIGKILL)
            with pytest.raises(EnvError, match="step: the worker died"):
                await env.step((Wait(),))
            await env.close()
            assert wait_until(lambda: not family & set(parents()))
            assert not worker.folder.exists()
            return await other.evaluate()

    assert asyncio.run(killed()) == 0.0


def test_a_worker_that_hangs_is_given_up_and_ended():
    async def hangs():
        async with desktop(osworld_task(RENAME)) as env:
            worker, family = env.session.worker, descendants(env.session.worker.pid)
            os.kill(worker.pid, signal.SIGSTOP)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await env.evaluate()
            await env.close()
            assert worker.pid not in parents()
            assert wait_until(lambda: not family & set(parents()))

    asyncio.run(hangs())


def test_when_its_process_is_killed_nothing_is_left():
    words = [{"python": str(PYTHON)}, {"name": "osworld"}, _fields(osworld_task(RENAME))]
    with subprocess.Popen(
        [sys.executable, ROOT / "tests" / "osworld_holder.py", *map(json.dumps, words)],
        stdout=subprocess.PIPE,
        text=True,
    ) as host:
        assert host.stdout is not None
        said = json.loads(host.stdout.readline())
        family = descendants(host.pid)
        assert said["worker"] in family and len(family) > 5
        host.kill()
    assert wait_until(lambda: not family & set(parents()))
    assert wait_until(lambda: not Path(said["root"]).exists())


def test_docker_as_desktop_env_has_it(tmp_path, monkeypatch):
    """Its own provider and life cycle; only the engine, which few machines have, is a small fake."""
    (tmp_path / "Ubuntu.qcow2").touch()
    (tmp_path / "screen.png").write_bytes(screenshot(7).png)
    events = tmp_path / "events"
    monkeypatch.setenv("FAKE_EVENTS", str(events))
    monkeypatch.setenv("FAKE_PICTURE", str(tmp_path / "screen.png"))
    monkeypatch.setenv("PYTHONPATH", str(FAKES / "docker_engine"))
    nursery.cache_clear()  # the next one sees the variables
    docker = OSWorldConfig(
        provider="docker", machine=str(tmp_path / "Ubuntu.qcow2"), python=str(PYTHON), pause=0
    )

    async def episode():
        task = told("test -e ~/it && echo yes")
        step = {"type": "launch", "parameters": {"command": ["gimp"]}}
        async with desktop(Task(**{**_fields(task), "config": (step,)}), docker) as env:
            result = await env.step((Click(point=Point(3, 4)),))
            return result.observation.screenshot.size, await env.evaluate()

    try:
        assert asyncio.run(episode()) == ((56, 56), 0.0)
    finally:
        nursery.cache_clear()
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
