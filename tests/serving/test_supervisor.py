"""Supervision with a scripted server. tests/vllm/test_serve.py supervises vLLM itself."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import fake_server
from arpo.errors import UserError
from arpo.serving.supervisor import Place, Supervision, choose_places, restart_pause, supervised
from processes import descendants, wait_until

KEY = "0123456789abcdef"


class FakeProgram:
    """Runs tests/support/fake_server.py. `behaviours` is a text for each port."""

    def __init__(self, behaviours):
        self.behaviours = behaviours

    def command(self, host, port):
        return [sys.executable, fake_server.__file__, host, str(port), self.behaviours[port]]

    def environment(self, packages, gpu, key):
        return {**os.environ, "ARPO_ENGINE_KEY": key}


def free_places(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return [Place(host="127.0.0.1", port=port) for port in ports]


@asynccontextmanager
async def running(tmp_path, *behaviours, key=KEY, **changes):
    """Servers with these behaviours, the notes of their supervisor, and a function that lists their pids."""
    places = free_places(len(behaviours))
    notes: list[str] = []
    program = FakeProgram({place.port: text for place, text in zip(places, behaviours, strict=True)})
    defaults = {"log_dir": tmp_path, "key": key, "start_seconds": 60.0, "report": notes.append}
    settings = Supervision(**defaults, poll_seconds=0.02, check_seconds=10.0, grace_seconds=0.5)
    before = descendants(os.getpid())
    try:
        async with supervised(program, places, replace(settings, **changes)) as servers:
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
            assert notes[0].startswith("starting vLLM servers at ports ")
            assert sorted(notes[1:]) == sorted(f"{server.place.url}: ready" for server in servers)

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
            assert notes[-2] == f"{first.place.url}: killed by SIGKILL; restart in 1 s; log: {first.log}"
            assert notes[-1] == f"{first.place.url}: ready"

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


def test_a_hanging_server_is_restarted(tmp_path):
    async def scenario():
        async with running(tmp_path, "", check_seconds=0.2, failed_checks=3) as ([server], notes, _):
            old = pid_of(server)
            os.kill(old, signal.SIGSTOP)
            await until(lambda: server.restarts == 1 and server.state == "healthy")
            assert pid_of(server) != old
            reason = "no answer to 3 health checks of 0.2 s"
            assert notes[-2] == f"{server.place.url}: {reason}; restart in 1 s; log: {server.log}"

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
            errors = "its last errors: ValueError: out of \ufffd[1mmemory"
            expected = f"{server.place.url}: exit code 3; {errors}; restart in 1 s; log: {server.log}"
            assert notes[1] == expected

    asyncio.run(scenario())


def test_a_server_that_always_dies_at_its_start_is_an_error(tmp_path):
    async def scenario():
        async with running(tmp_path, "child", "fails"):
            raise AssertionError("the block must not begin")

    with pytest.raises(UserError) as caught:
        asyncio.run(scenario())
    message = str(caught.value)
    assert (
        "did not start in 3 attempts: exit code 3; its last errors: ValueError: out of \ufffd[1mmemory"
        in message
    )
    assert f"log: {tmp_path}/server-" in message


def test_a_server_that_never_answers_is_an_error(tmp_path):
    async def scenario():
        async with running(tmp_path, "hangs", start_seconds=0.1):
            raise AssertionError("the block must not begin")

    with pytest.raises(UserError, match=r"3 attempts: not ready after 0.1 s; its last errors: none; log: "):
        asyncio.run(scenario())


def test_a_stranger_on_the_port_is_not_taken_for_the_server(tmp_path):
    async def scenario():
        async with running(tmp_path, "", key="") as ([stranger], *_):
            place = stranger.place
            settings = Supervision(log_dir=tmp_path, key=KEY, start_seconds=60.0, report=lambda text: None)
            with pytest.raises(UserError, match="did not start in 3 attempts: Address already in use"):
                async with supervised(FakeProgram({place.port: ""}), [place], settings):
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


def test_pauses_between_starts_double_up_to_a_minute():
    """Also after a day: 2.0 ** 1999 is no float."""
    assert [restart_pause(failures) for failures in (1, 2, 3, 6, 7, 2000)] == [
        1.0,
        2.0,
        4.0,
        32.0,
        60.0,
        60.0,
    ]
