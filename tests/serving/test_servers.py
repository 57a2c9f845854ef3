"""Servers of a command, with a scripted server. tests/vllm/test_serve.py starts vLLM itself."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fake_server
import fake_vllm
from arpo.config import Config
from arpo.errors import UserError
from arpo.processes.supervisor import Supervision
from arpo.serving.servers import (
    MISSING,
    OwnServers,
    Place,
    ServerProgram,
    choose_places,
    open_served,
    open_servers,
    supervised,
)
from processes import descendants, wait_until

KEY = "0123456789abcdef"


class FakeModel:
    """Runs tests/support/fake_server.py. `behaviours` is a text for each port."""

    def __init__(self, behaviours):
        self.behaviours = behaviours

    def command(self, host, port):
        return [sys.executable, fake_server.__file__, host, str(port), self.behaviours.get(port, "")]

    def environment(self, packages, gpu, key):
        return {**os.environ, "ARPO_ENGINE_KEY": key}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("arpo.processes.backoff.FIRST_SECONDS", 0.2)


def free_places(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return [Place(host="127.0.0.1", port=port) for port in ports]


@asynccontextmanager
async def running(tmp_path, *behaviours, key=KEY, places=None, moves=False, **changes):
    """Servers with these behaviours, the notes about them, and a function that lists their pids."""
    places = places or free_places(len(behaviours))
    notes: list[str] = []
    model: Any = FakeModel({place.port: text for place, text in zip(places, behaviours, strict=True)})
    watch = Supervision(start_seconds=60.0, attempts=3, check_seconds=10.0, poll_seconds=0.02)
    watch = replace(watch, **changes)
    programs = [
        ServerProgram(
            model=model,
            place=place,
            log_dir=tmp_path,
            key=key,
            moves=moves,
            check_seconds=watch.check_seconds,
            grace_seconds=0.5,
        )
        for place in places
    ]
    before = descendants(os.getpid())
    try:
        async with supervised(programs, watch, notes.append) as servers:
            yield servers, notes, lambda: descendants(os.getpid()) - before
    finally:
        assert wait_until(lambda: not descendants(os.getpid()) - before)


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  (the condition is in other processes)
            await asyncio.sleep(0.02)


def pid_of(server):
    """The process that listens on the server's port."""
    [pid] = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and is_server(entry, str(server.place.port))
    ]
    return pid


def is_server(entry, port):
    try:
        words = (entry / "cmdline").read_text().split("\0")
    except OSError:
        return False
    return words[1:2] == [fake_server.__file__] and port in words


def test_servers_run_during_the_block_and_leave_nothing(tmp_path):
    async def scenario():
        async with running(tmp_path, "child", "child,deaf") as (servers, notes, processes):
            assert [server.state for server in servers] == ["healthy", "healthy"]
            assert len(processes()) == 6  # guard, server and child of each
            assert sorted(notes) == sorted(f"{server.place.url}: ready" for server in servers)

    asyncio.run(scenario())


def test_a_killed_server_is_restarted_on_its_port(tmp_path):
    async def scenario():
        async with running(tmp_path, "child", "child") as ([first, second], notes, _):
            old = pid_of(first)
            os.kill(old, signal.SIGKILL)
            await until(lambda: first.state != "healthy")
            await until(lambda: first.state == "healthy")
            assert pid_of(first) != old
            assert (first.restarts, second.restarts) == (1, 0)
            assert notes[-2].startswith(f"{first.place.url}: killed by SIGKILL; its last output: ")
            assert f"log: {tmp_path}" in notes[-2] and notes[-2].endswith("; restart in 0.2 s")
            assert notes[-1] == f"{first.place.url}: ready"

    asyncio.run(scenario())


def test_a_server_whose_port_was_taken_while_it_was_down_moves_to_another_one(tmp_path):
    async def scenario():
        async with running(tmp_path, "", moves=True) as ([server], *_):
            old = server.place
            os.kill(pid_of(server), signal.SIGKILL)
            await until(lambda: server.state != "healthy")
            with socket.create_server((old.host, old.port)):
                await until(lambda: server.state == "healthy")
            assert server.place.port > old.port
            assert server.address() == server.place.url != old.url

    asyncio.run(scenario())


def test_a_server_is_restarted_if_its_guard_is_killed(tmp_path):
    async def scenario():
        async with running(tmp_path, "") as ([server], _, processes):
            old = pid_of(server)
            [guard] = processes() - {old}
            os.kill(guard, signal.SIGKILL)
            await until(lambda: server.restarts == 1 and server.state == "healthy")
            assert pid_of(server) != old

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_hanging_server_is_restarted(tmp_path):
    async def scenario():
        async with running(tmp_path, "", check_seconds=0.2, failed_checks=3) as ([server], notes, _):
            old = pid_of(server)
            os.kill(old, signal.SIGSTOP)
            await until(lambda: server.restarts == 1 and server.state == "healthy")
            assert pid_of(server) != old
            assert "no answer to 3 health checks of 0.2 s" in notes[-2]

    asyncio.run(scenario())


def test_a_server_whose_engine_hangs_is_restarted(tmp_path):
    hanging = tmp_path / "hanging"

    async def scenario():
        behaviour = f"engine-hangs={hanging}"
        async with running(tmp_path, behaviour, check_seconds=0.2, failed_checks=3) as ([server], *_):
            old = pid_of(server)
            hanging.touch()
            await until(lambda: server.restarts == 1)
            hanging.unlink()
            await until(lambda: server.state == "healthy")
            assert pid_of(server) != old

    asyncio.run(scenario())


def test_a_server_that_lacks_a_library_is_started_once(tmp_path):
    """Its cause is far above the end of its log."""

    async def scenario():
        async with running(tmp_path, "lacks", hopeless=MISSING):
            raise AssertionError

    with pytest.raises(
        UserError, match=r"exit code 1; its last output: ModuleNotFoundError: No module named 'x'"
    ):
        asyncio.run(scenario())
    [log] = tmp_path.glob("*.log")
    assert log.read_text().count("ModuleNotFoundError") == 1


def test_a_restart_that_fails_is_repeated(tmp_path):
    logs, kept = tmp_path / "logs", tmp_path / "kept"

    async def scenario():
        async with running(logs, "") as ([server], notes, _):
            logs.rename(kept)
            logs.write_text("no folder")
            os.kill(pid_of(server), signal.SIGKILL)
            await until(lambda: "Not a directory" in notes[-1])
            logs.unlink()
            await until(lambda: server.state == "healthy")

    asyncio.run(scenario())


def test_a_failed_start_is_repeated(tmp_path):
    async def scenario():
        async with running(tmp_path, f"fails-once={tmp_path / 'failed'}") as ([server], notes, _):
            assert server.restarts == 1
            assert "exit code 3; its last output: ValueError: out of \ufffd[1mmemory" in notes[0]

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_server_that_always_dies_at_its_start_is_an_error(tmp_path):
    async def scenario():
        async with running(tmp_path, "child", "fails"):
            raise AssertionError("the block must not begin")

    with pytest.raises(UserError) as caught:
        asyncio.run(scenario())
    message = str(caught.value)
    assert "did not start: exit code 3; its last output: ValueError: out of \ufffd[1mmemory" in message
    assert f"log: {tmp_path}/server-" in message


def test_a_server_that_never_answers_is_an_error(tmp_path):
    async def scenario():
        async with running(tmp_path, "hangs", start_seconds=0.1):
            raise AssertionError("the block must not begin")

    with pytest.raises(
        UserError, match=r"did not start: not ready after 0.1 s; its last output: none; log: "
    ):
        asyncio.run(scenario())


def test_a_stranger_on_the_port_is_not_taken_for_the_server(tmp_path):
    async def scenario():
        async with running(tmp_path, "", key="") as ([stranger], *_):
            with pytest.raises(UserError, match="did not start: Address already in use"):
                async with running(tmp_path, "", places=[stranger.place]):
                    raise AssertionError("the block must not begin")

    asyncio.run(scenario())


def test_cancelling_during_the_start_leaves_nothing(tmp_path):
    async def scenario():
        async with running(tmp_path, "hangs,child"):
            raise AssertionError("the block must not begin")

    async def cancelled():
        task = asyncio.create_task(scenario())
        await until(lambda: list(tmp_path.glob("*.log")))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    asyncio.run(cancelled())


def test_a_port_in_use_is_skipped_or_refused():
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        first, second = choose_places("127.0.0.1", port, ["0", "3"], skip_used=True)
        assert first.port > port
        assert second.port > first.port
        assert (first.gpu, second.gpu) == ("0", "3")
        with pytest.raises(UserError, match=f"127.0.0.1:{port}: Address already in use.*choose another port"):
            choose_places("127.0.0.1", port, [""], skip_used=False)
    with pytest.raises(UserError, match=r"^203.0.113.7:9000: Cannot assign requested address: check --host$"):
        choose_places("203.0.113.7", 9000, [""], skip_used=False)
    with pytest.raises(UserError, match="no free port up to 65535"):
        choose_places("127.0.0.1", 65536, [""], skip_used=True)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9000"),
        ("0.0.0.0", "http://127.0.0.1:9000"),
        ("::", "http://[::1]:9000"),
        ("10.0.0.7", "http://10.0.0.7:9000"),
    ],
)
def test_the_url_of_a_place(host, url):
    assert Place(host=host, port=9000).url == url


def config(tmp_path, behaviour="", replicas=2, **changes):
    python = fake_vllm.install(tmp_path, behaviour)
    engine = replace(Config().engine, name="vllm", replicas=replicas, python=python, **changes)
    return replace(Config(), engine=engine)


def own_servers(settings: Config, *, learning: bool = True) -> OwnServers:
    servers = open_servers(settings, learning=learning)
    assert servers is not None
    return servers


def test_a_run_without_replicas_starts_no_servers(tmp_path):
    assert open_servers(config(tmp_path, replicas=0), learning=True) is None
    assert open_servers(replace(Config(), engine=replace(Config().engine, replicas=2)), learning=True) is None


def test_the_servers_of_a_run_have_a_random_key(tmp_path, monkeypatch):
    monkeypatch.delenv("ARPO_ENGINE_KEY", raising=False)
    first, second = (own_servers(config(tmp_path)) for _ in range(2))
    assert len(first.key) == 32
    assert first.key != second.key
    assert (first.host, first.gpus, first.share_gpu) == ("127.0.0.1", ("", ""), False)
    monkeypatch.setenv("ARPO_ENGINE_KEY", "0123456789abcdef")
    assert own_servers(config(tmp_path)).key == "0123456789abcdef"


def test_the_servers_of_a_run_prepare_for_its_requests_only(tmp_path):
    """Those of `arpo serve` do not know how many there will be."""
    settings = replace(config(tmp_path), env=replace(Config().env, parallel=24))
    own = own_servers(settings).model.command("127.0.0.1", 9000)
    assert own[own.index("--max-num-seqs") + 1] == "24"
    assert "--max-num-seqs" not in open_served(settings, "127.0.0.1").model.command("127.0.0.1", 9000)


def test_served_models_have_no_key_on_loopback(tmp_path, monkeypatch):
    monkeypatch.delenv("ARPO_ENGINE_KEY", raising=False)
    assert open_served(config(tmp_path), "127.0.0.1").key == ""
    with pytest.raises(
        UserError, match=r"--host 192\.0\.2\.1: is reachable from other machines, but there is no key"
    ):
        open_served(config(tmp_path), "192.0.2.1")


@pytest.mark.slow
def test_two_runs_on_one_machine_use_other_ports(tmp_path):
    before = descendants(os.getpid())  # of other tests

    async def scenario():
        servers = own_servers(config(tmp_path))
        notes: list[str] = []
        async with servers.running(tmp_path / "a", notes.append) as first:
            async with servers.running(tmp_path / "b", notes.append) as second:
                ports = {server.place.port for server in (*first, *second)}
                assert len(ports) == 4
                assert min(ports) >= 9000
            assert all(server.state == "healthy" for server in first)

    asyncio.run(scenario())
    assert wait_until(lambda: not descendants(os.getpid()) - before)


def test_logs_without_a_folder_are_kept_only_after_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    servers = own_servers(config(tmp_path, replicas=1), learning=False)

    async def scenario(fault):
        async with servers.running(None, lambda text: None):
            if fault:
                raise fault

    asyncio.run(scenario(None))
    assert not list(tmp_path.glob("arpo-servers-*"))
    with pytest.raises(ZeroDivisionError):
        asyncio.run(scenario(ZeroDivisionError()))
    [folder] = tmp_path.glob("arpo-servers-*")
    assert [path.suffix for path in Path(folder).glob("server-*")] == [".log"]
