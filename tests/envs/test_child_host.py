"""The environment host as a child process: it starts, restarts, and exits with the run."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from arpo.actions import Wait
from arpo.config import Config, EnvConfig, OSWorldConfig
from arpo.envs import child_host
from arpo.envs.child_host import ChildHost, start_child_host
from arpo.envs.factory import open_pool
from arpo.envs.remote import HostLost, Hosts, RemoteHost, open_session
from arpo.errors import UserError
from arpo.testing import task
from env_hosts import FAKE
from processes import descendants

TASK = task("t")


def config(**changes):
    return Config(env=EnvConfig(**{"name": FAKE, "parallel": 2, "start_seconds": 30.0, **changes}))


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pid_of(child):
    wait_until(lambda: child.watch.child is not None)
    return child.watch.child.process.pid


def wait_until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("the condition was not met in time")


async def step(source):
    async with source.lease() as env:
        await env.start(TASK)
        result = await env.step((Wait(),))
        await env.close()
        return result.observation.screenshot.size


def test_it_serves_the_recipe_and_requires_the_token(monkeypatch):
    monkeypatch.setenv("ARPO_HOST_TOKEN", "of some other host")
    source = start_child_host(config())
    assert asyncio.run(step(source)) == (56, 56)
    [host] = source._hosts
    assert host.name == "the environment host of this run"
    host._headers = {}
    with pytest.raises(Exception, match="wrong or no token"):
        asyncio.run(_ask(host))


async def _ask(host):
    async with open_session() as session:
        await host.call(session, "GET", "/health", where="start", seconds=5)


@pytest.mark.parametrize(
    ("provider", "passed"),
    [pytest.param("local", set(), marks=pytest.mark.slow), ("aws", {"AWS_SECRET_ACCESS_KEY"})],
)
def test_it_gets_only_the_secrets_of_its_provider(monkeypatch, provider, passed):
    secrets = {"AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "MY_OWN_PASSWORD", "OPENAI_API_KEY", "WANDB_API_KEY"}
    for name in secrets:
        monkeypatch.setenv(name, "secret")
    child = ChildHost(replace(config(), osworld=OSWorldConfig(provider=provider)))
    child.wait()
    with open(f"/proc/{pid_of(child)}/environ") as file:
        names = {pair.partition("=")[0] for pair in file.read().split("\0")}
    child.close()
    assert names & secrets == passed
    assert {"PATH", "ARPO_HOST_TOKEN"} <= names


@pytest.mark.slow
def test_a_dead_host_is_restarted():
    child = ChildHost(config())
    child.wait()
    first, pid = child.address(), pid_of(child)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: child.watch.state != "healthy")
    with pytest.raises(HostLost, match="the environment host of this run is starting"):
        child.address()
    wait_until(lambda: child.watch.state == "healthy")
    assert child.address() != first and child.watch.restarts == 1
    again = pid_of(child)
    child.close()
    assert not is_running(pid) and not is_running(again)


@pytest.mark.slow
def test_a_hanging_host_is_restarted(monkeypatch):
    monkeypatch.setattr(child_host, "CHECK_SECONDS", 0.2)
    child = ChildHost(config(step_seconds=0.5))
    child.wait()
    os.kill(pid_of(child), signal.SIGSTOP)
    wait_until(lambda: child.watch.restarts == 1)
    child.close()


@pytest.mark.slow
def test_a_closed_source_has_ended_its_host():
    """The source is still referenced here: garbage collection does not end the host."""
    before = descendants(os.getpid())
    source = start_child_host(config())
    [pid] = descendants(os.getpid()) - before
    source.close()
    assert not is_running(pid)
    with pytest.raises(HostLost, match="has ended"):
        source._hosts[0]._address()
    assert not descendants(os.getpid()) - before


@pytest.mark.slow
def test_a_run_continues_when_its_host_dies():
    child = ChildHost(config())
    child.wait()
    source = Hosts([RemoteHost("ours", child.address, child.token)], config().env)
    assert asyncio.run(step(source)) == (56, 56)
    os.kill(pid_of(child), signal.SIGKILL)
    assert asyncio.run(step(source)) == (56, 56)
    child.close()


@pytest.mark.slow
def test_its_temporary_folder_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    child = ChildHost(config())
    wait_until(lambda: len(list(tmp_path.iterdir())) == 1)
    child.wait()
    assert list(tmp_path.iterdir()) == []
    child.close()


PARENT = """
import sys, time
from arpo.config import Config, EnvConfig
from arpo.envs import child_host
from arpo.envs.child_host import ChildHost
name, way = sys.argv[1:]
child = ChildHost(Config(env=EnvConfig(name=name)))
if name == "arpo.testing:FakeEnv":
    child.wait()
while child.watch.child is None:
    time.sleep(0.01)
print(child.watch.child.process.pid, flush=True)
if way == "stay":
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (FAKE, "stay"),
        pytest.param(FAKE, "leave", marks=pytest.mark.slow),
        pytest.param("endless:Env", "stay", marks=pytest.mark.slow),
    ],
)
def test_it_exits_with_its_parent(tmp_path, name, way):
    (tmp_path / "endless.py").write_text("while True: pass\n")
    command = [sys.executable, "-c", PARENT, name, way]
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environ)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    if way == "stay":
        time.sleep(1)
        assert is_running(pid)
        os.kill(parent.pid, signal.SIGKILL)
    parent.communicate(timeout=60)
    wait_until(lambda: not is_running(pid))


def test_a_host_that_does_not_exit_is_killed(tmp_path, monkeypatch):
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text("import time\nfrom arpo.testing import FakeEnv as Env\nwhile True: time.sleep(1)\n")
    monkeypatch.chdir(tmp_path)
    child = ChildHost(config(name="stubborn:Env", step_seconds=0.5))
    pid = pid_of(child)
    child.close()
    assert not is_running(pid)


def test_a_host_that_fails_to_start_reports_its_stderr(tmp_path, monkeypatch):
    (tmp_path / "broken.py").write_text("raise RuntimeError('no such screen')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"did not start: .*RuntimeError: no such screen \(broken.py:1\)"):
        start_child_host(config(name="broken:Env"))


@pytest.mark.slow
def test_a_host_that_starts_too_slowly_is_stopped(tmp_path, monkeypatch):
    slow = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    (tmp_path / "slow.py").write_text(slow)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"did not start: not ready after 5 s; its last output: none"):
        start_child_host(config(name="slow:Env", start_seconds=5.0, step_seconds=0.5))
    assert not is_running(int((tmp_path / "pid").read_text()))


def test_a_missing_interpreter_is_named_with_its_remedy():
    settings = OSWorldConfig(python="nowhere/bin/python")
    recipe = replace(config(name="osworld"), osworld=settings)
    with pytest.raises(UserError, match=r"osworld.python = 'nowhere/bin/python': .* `arpo osworld install`"):
        open_pool(recipe)


@pytest.mark.slow
def test_only_the_last_lines_of_stderr_are_kept(tmp_path, monkeypatch):
    (tmp_path / "loud.py").write_text(
        "import sys\nfor n in range(30000): print('line', n, 'x' * 900, file=sys.stderr)\n1 / 0\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        start_child_host(config(name="loud:Env"))
    assert "ZeroDivisionError" in str(caught.value)
    assert len(str(caught.value)) < 20 * 600
