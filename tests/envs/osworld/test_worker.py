"""Workers of the OSWorld environment: calls, timeouts, crashes, kills. desktop-env is a fake."""

import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arpo.actions import Click, Fail, Point, Type, Wait
from arpo.config import EnvConfig, OSWorldConfig
from arpo.envs.osworld.env import OSWorldEnv
from arpo.envs.osworld.fork_server import ForkServer
from arpo.envs.osworld.limits import Limits
from arpo.envs.osworld.worker import add_placeholder
from arpo.errors import EnvError, UserError
from arpo.types import Task
from processes import descendants, parents, wait_until

FAKES = Path(__file__).parents[2] / "support" / "fakes"
HOLDER = Path(__file__).parents[2] / "support" / "osworld_holder.py"
CLICK = Click(point=Point(3, 4))


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """File to which the fake machines append their events."""
    path = tmp_path_factory.mktemp("fake") / "events"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_FAKE_EVENTS", str(path))
        yield path


@pytest.fixture
def events(log):
    log.write_text("")
    return lambda: log.read_text().split("\n")[:-1]


@pytest.fixture
def made(monkeypatch, tmp_path, log):
    """Factory of environments with workers that load the fake."""
    monkeypatch.setenv("PYTHONPATH", str(FAKES))
    monkeypatch.syspath_prepend(str(FAKES))
    (tmp_path / "disk").touch()
    config = OSWorldConfig(provider="docker", machine=str(tmp_path / "disk"), pause=0)
    return lambda: OSWorldEnv(config, EnvConfig(name="osworld", width=64, height=48))


def a_task(*config, value=0.25):
    return Task(
        id="t",
        instruction="",
        snapshot="",
        config=tuple({"type": kind, "parameters": parameters} for kind, parameters in config),
        evaluator={"func": "given", "result": {"type": "value", "value": value}},
    )


def test_an_episode_runs_in_its_worker(made):
    async def episode():
        env = made()
        observation = await env.start(a_task())
        result = await env.step((Type(text="两", submit=True), CLICK, Wait()))
        assert not result.terminated
        folder, worker = env.client.worker.folder, env.client.worker.pid
        assert folder.is_dir() and worker in parents()
        scores = [await env.evaluate(), await env.evaluate()]
        await env.close()
        await env.close()
        assert not folder.exists() and worker not in parents()
        return observation.screenshot.size, result.observation.screenshot.size, scores

    assert asyncio.run(episode()) == ((1, 1), (1, 1), [0.25, 0.25])


def test_an_environment_can_be_closed_unused_and_is_good_for_one_episode(made):
    async def misuse():
        env = made()
        for call in (env.step((CLICK,)), env.evaluate()):
            with pytest.raises(EnvError, match="not running"):
                await call
        await env.close()
        await env.close()
        with pytest.raises(EnvError, match="already used"):
            await env.start(a_task())

    asyncio.run(misuse())


def test_an_error_in_the_worker_is_raised_with_its_message(made):
    async def fails():
        env = made()
        try:
            with pytest.raises(EnvError) as caught:
                await env.start(a_task(("launch", {"command": "missing"})))
            assert caught.value.where == "start"
            assert caught.value.message.startswith("config step 1 of 1 (launch): Failed to launch")
        finally:
            await env.close()

    asyncio.run(fails())


def test_a_crash_fails_one_episode_and_its_machine_is_stopped(made, events):
    async def crash():
        good, bad = made(), made()
        await good.start(a_task(("launch", {"command": "gimp"})))
        with pytest.raises(EnvError, match=r"start: the worker died: Fatal Python error: Aborted"):
            await bad.start(a_task(("crash", {})))
        folder = bad.client.worker.folder
        await bad.close()
        assert not folder.exists()
        assert await good.evaluate() == 0.25
        assert events().count("boot") == 2 and events().count("stop") == 1
        await good.close()

    asyncio.run(crash())


def test_a_call_that_times_out_ends_the_worker_and_stops_its_machine(made, events):
    async def hang():
        env = made()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await env.start(a_task(("launch", {"command": "gimp"}), ("sleep", {"seconds": 3600})))
        worker = env.client.worker.pid
        with pytest.raises(EnvError, match="cancelled"):
            await env.step((CLICK,))
        await env.close()
        assert worker not in parents()

    asyncio.run(hang())
    assert events() == ["boot", "launch gimp", "stop"]


def test_a_worker_is_ended_if_start_is_cancelled(made):
    async def cancelled():
        env = made()
        start = asyncio.create_task(env.start(a_task()))
        await asyncio.sleep(0)  # the fork is requested, not finished
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await env.close()
        assert env.client.worker.pid not in parents()

    asyncio.run(cancelled())


def test_a_dead_fork_server_is_replaced(made):
    async def orphaned():
        env = made()
        await env.start(a_task())
        os.kill(parents()[env.client.worker.pid], signal.SIGKILL)
        assert wait_until(lambda: env.client.worker.pid not in parents())
        with pytest.raises(EnvError):
            await env.evaluate()
        await env.close()
        env = made()
        await env.start(a_task())
        assert await env.evaluate() == 0.25
        await env.close()

    asyncio.run(orphaned())


def test_nothing_remains_after_the_process_is_killed(made, events, tmp_path):
    config = {"provider": "docker", "machine": str(tmp_path / "disk"), "pause": 0}
    task = {"id": "t", "instruction": "", "snapshot": "", "config": [], "evaluator": {"func": "infeasible"}}
    arguments = [json.dumps(each) for each in (config, {"name": "osworld"}, task)]
    with subprocess.Popen(
        [sys.executable, HOLDER, *arguments],
        stdout=subprocess.PIPE,
        text=True,
    ) as host:
        assert host.stdout is not None
        printed = json.loads(host.stdout.readline())
        family = descendants(host.pid)
        assert printed["worker"] in family and Path(printed["root"]).is_dir()
        host.kill()
    assert wait_until(lambda: not family & set(parents()))
    assert wait_until(lambda: not Path(printed["root"]).exists())
    assert events()[-1] == "stop"


SECRETS = {
    "ARPO_HOST_TOKEN", "AWS_SECRET_ACCESS_KEY", "AZURE_CLIENT_SECRET", "HF_TOKEN", "MY_OWN_PASSWORD",
    "OPENAI_API_KEY", "PROXY_CONFIG_FILE", "WANDB_API_KEY",
}  # fmt: skip


@pytest.mark.parametrize(("provider", "passed"), [("local", set()), ("aws", {"AWS_SECRET_ACCESS_KEY"})])
def test_a_worker_has_one_thread_and_only_the_secrets_of_its_provider(made, monkeypatch, provider, passed):
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("no_proxy", "intranet")
    server = ForkServer(sys.executable, provider=provider, limits=None)  # the worker ends with it
    worker = server.fork()
    with worker.connection:
        process = Path("/proc", str(worker.pid))
        variables = dict(pair.split("=", 1) for pair in (process / "environ").read_text().split("\0") if pair)
        assert len(list((process / "task").iterdir())) == 1
    worker.release()
    assert variables.keys() & SECRETS == passed
    assert variables["no_proxy"] == "intranet,127.0.0.1,localhost"


def test_a_worker_is_limited_in_memory_and_file_size(made):
    limits = Limits(memory_megabytes=1024, processes=512, cpus=1.0, file_megabytes=64)
    server = ForkServer(sys.executable, provider="local", limits=limits)  # the worker ends with it
    worker = server.fork()
    with worker.connection:
        file = Path("/proc", str(worker.pid), "limits")
        assert wait_until(lambda: f"Max data size             {1024 * 2**20} " in file.read_text())
        assert f"Max file size             {64 * 2**20} " in file.read_text()
    worker.release()


def test_a_placeholder_raises_import_error_on_use():
    add_placeholder("no_such_reader")
    reader = importlib.import_module("no_such_reader")
    del sys.modules["no_such_reader"]
    with pytest.raises(ImportError, match="no_such_reader is not installed: pip install no_such_reader"):
        reader.Reader(["en"])
    add_placeholder("json")
    assert importlib.import_module("json") is json


def test_an_unknown_provider_is_rejected_with_the_list():
    with pytest.raises(
        UserError, match=r"'dokcer': unknown provider; use one of local, docker, .*did you mean 'docker'\?"
    ):
        OSWorldEnv(OSWorldConfig(provider="dokcer"), EnvConfig())


def test_docker_needs_its_disk_image(tmp_path):
    config = OSWorldConfig(provider="docker", machine=str(tmp_path / "Ubuntu.qcow2"))
    with pytest.raises(UserError, match=r"osworld\.machine: no disk image at .*Ubuntu\.qcow2; .*unpack it"):
        OSWorldEnv(config, EnvConfig())


def test_a_provider_needs_its_program(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match="'vmware': vmrun is not on the PATH"):
        OSWorldEnv(OSWorldConfig(provider="vmware"), EnvConfig())


def test_an_interpreter_that_is_not_there_is_named():
    with pytest.raises(UserError, match=r"osworld\.python = 'no/python': .*arpo osworld install"):
        OSWorldEnv(OSWorldConfig(python="no/python"), EnvConfig())


@pytest.fixture
def bwrap(tmp_path, monkeypatch):
    """A program of this name is found: `make test` also passes before `make osworld`."""
    (tmp_path / "bwrap").touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("bwrap")
def test_an_interpreter_without_desktop_env_is_reported(monkeypatch):
    async def start():
        env = OSWorldEnv(OSWorldConfig(python=sys.executable), EnvConfig())
        with pytest.raises(
            EnvError,
            match=r"desktop-env: ModuleNotFoundError: No module named 'desktop_env'; run `arpo osworld",
        ):
            await env.start(a_task())
        await env.close()

    monkeypatch.delenv("PYTHONPATH", raising=False)
    asyncio.run(start())


@pytest.mark.usefixtures("bwrap")
def test_a_task_with_uncached_files_fails_before_booting():
    async def start():
        env = OSWorldEnv(OSWorldConfig(python=sys.executable), EnvConfig())
        task = a_task(("download", {"files": [{"url": "https://a.example", "path": "/a"}]}))
        with pytest.raises(
            EnvError, match=r"^start: task t: file t/.*_a .* is not in the cache .*fetch-cache"
        ):
            await env.start(task)
        await env.close()

    asyncio.run(start())


def test_fail_solves_an_infeasible_task(made):
    async def infeasible():
        env = made()
        await env.start(
            Task(id="t", instruction="", snapshot="", config=(), evaluator={"func": "infeasible"})
        )
        before = await env.evaluate()
        await env.step((Fail(),))
        after = await env.evaluate()
        await env.close()
        return before, after

    assert asyncio.run(infeasible()) == (0.0, 1.0)
