"""The HTTP server of environment hosts and of the viewer: limits on connections, time and headers."""

import asyncio
import json
import signal
import socket
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest

from arpo import http_server
from arpo.actions import Wait
from arpo.config import EnvConfig
from arpo.envs import host, wire
from arpo.envs.host import hosting
from arpo.envs.listen import Listen
from arpo.testing import FakeEnv, task
from env_hosts import FAKE, HostCommand, hosted, hosts_at, until

TASK = task("t")
CONFIG = EnvConfig(name=FAKE, parallel=2)
TOKEN = "0123456789abcdef"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
WITH_TOKEN = b"GET /health HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n"


def port_of(address):
    return int(address.rpartition(":")[2])


def connect(address):
    return socket.create_connection(("127.0.0.1", port_of(address)), timeout=20)


def post(path, body, length=None):
    length = len(body) if length is None else length
    header = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{header}Content-Length: {length}\r\n\r\n".encode() + body


class Peer:
    """A TCP connection to a host, in raw bytes."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    def send(self, content):
        self._writer.write(content)

    def drop(self):
        self._writer.transport.abort()

    def pause_reading(self):
        self._writer.transport.pause_reading()

    @property
    def unsent(self):
        return self._writer.transport.get_write_buffer_size()

    @property
    def is_disconnected(self):
        """Whether the host has reset the connection."""
        return self._writer.transport.is_closing()

    async def answer(self):
        """Status, headers and body of the next response."""
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        body = await self._reader.readexactly(int(headers.get("Content-Length", 0)))
        return int(first.split()[1]), headers, body

    async def rest(self):
        """Everything until the host closes the connection."""
        content = bytearray()
        with suppress(ConnectionError):
            while chunk := await self._reader.read(4096):
                content += chunk
        return bytes(content)

    @property
    def is_closed(self):
        return self._reader.at_eof() or self._reader.exception() is not None


@asynccontextmanager
async def hosting_peers(factory=FakeEnv, token=None, **settings):
    """A host, and a function that connects to it."""
    opened = []
    async with (
        asyncio.timeout(60),
        hosted(factory, EnvConfig(**{"name": FAKE, **settings}), token) as address,
    ):

        async def open_peer(content=b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_of(address))
            opened.append(writer)
            writer.write(content)
            return Peer(reader, writer)

        try:
            yield open_peer
        finally:
            for writer in opened:
                writer.close()


async def drip(peer, content, done):
    """Send a byte at a time until `done`, as a slow client would."""
    for number in range(10_000):
        if done.done():
            return
        with suppress(ConnectionError):
            peer.send(content[number % len(content) : number % len(content) + 1])
        await asyncio.sleep(0.02)


async def play(env):
    await env.start(TASK)
    await env.step((Wait(),))
    score = await env.evaluate()
    await env.close()
    return score


def test_listening_on_a_name_with_several_addresses():
    async def call():
        listen = Listen(host="localhost", port=0)
        async with hosting(FakeEnv, CONFIG, token=None, listen=listen) as address:
            assert address.startswith("http://localhost:")
            async with hosts_at(CONFIG, address).lease() as env:
                return await play(env)

    assert asyncio.run(call()) == 0.0


@pytest.mark.slow
def test_300_idle_connections_do_not_stop_a_host_with_256_descriptors(tmp_path):
    host = HostCommand(tmp_path, "--env", FAKE, "--slots", "2", "--listen", "127.0.0.1:0", descriptors=256)

    async def flood():
        source = hosts_at(CONFIG, host.address)
        with ExitStack() as idle:
            async with asyncio.timeout(60), source.lease() as first:
                await first.start(TASK)
                for _ in range(300):
                    idle.enter_context(connect(host.address))
                await first.step((Wait(),))
                async with source.lease() as second:
                    assert await play(second) == 0.0
                assert await first.evaluate() == 0.0
                await first.close()

    try:
        asyncio.run(flood())
    finally:
        code, _, written = host.end(signal.SIGTERM)
    assert code == 0
    assert len(written) < 10_000


GREEDY = """
import os
from contextlib import suppress
from arpo.testing import FakeEnv

class Greedy(FakeEnv):
    async def step(self, actions):
        if len(self.steps) == 1:
            for number in self.taken:
                os.close(number)
        else:
            self.taken = []
            with suppress(OSError):
                while True:
                    self.taken.append(os.dup(0))
        return await super().step(actions)
"""


@pytest.mark.slow
def test_a_host_without_free_descriptors_recovers(tmp_path, monkeypatch):
    """Its environment takes all of them, and gives them back in its second step."""
    (tmp_path / "greedy.py").write_text(GREEDY)
    monkeypatch.chdir(tmp_path)
    words = ("--env", "greedy:Greedy", "--slots", "2", "--listen", "127.0.0.1:0")
    host = HostCommand(tmp_path, *words, descriptors=128)
    settings = EnvConfig(name="greedy:Greedy", parallel=2)

    async def exhaust():
        source = hosts_at(settings, host.address)
        with ExitStack() as idle:
            async with asyncio.timeout(60), source.lease() as first:
                await first.start(TASK)
                await first.step((Wait(),))
                for _ in range(200):
                    idle.enter_context(connect(host.address))
                await until(lambda: "cannot accept a connection: [Errno 24]" in host.stderr)
                await first.step((Wait(),))
                async with source.lease() as second:
                    await second.start(TASK)

    try:
        asyncio.run(exhaust())
    finally:
        code, _, written = host.end(signal.SIGTERM)
    assert code == 0
    assert len(written) < 10_000


@pytest.mark.parametrize("fault", [OSError(105, "No buffer space available"), RuntimeError("unforeseen")])
def test_a_host_survives_a_fault_between_accepting_and_serving(fault, monkeypatch, caplog):
    """The kernel can refuse any call when it is short of memory. The connection is closed, not left open."""
    monkeypatch.setattr(http_server, "ACCEPT_RETRY_SECONDS", 0.01)

    async def fail(*_):
        raise fault

    async def call():
        async with hosting_peers() as open_peer:
            with monkeypatch.context() as patch:
                patch.setattr(asyncio.get_running_loop(), "connect_accepted_socket", fail)
                assert await (await open_peer()).rest() == b""
            assert (await (await open_peer(HEALTH)).answer())[0] == 200

    asyncio.run(call())
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "cannot accept a connection"
    ]


def test_a_stranger_has_a_limited_time(monkeypatch):
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 1.0)

    async def wait():
        async with hosting_peers(token=TOKEN) as open_peer:
            silent = await open_peer()
            half = await open_peer(b"GET /health HTTP/1.1\r\nHost: a\r\n")
            refused = await open_peer(HEALTH)
            slow = await open_peer()
            end = asyncio.create_task(slow.rest())
            await drip(slow, b"GET /" + b"a" * 4000, end)
            assert [await silent.rest(), await half.rest(), await end] == [b"", b"", b""]
            assert b"WrongToken" in await refused.rest()

    asyncio.run(wait())


def test_a_stranger_that_reads_nothing_is_replaced_at_once(monkeypatch):
    """The refusals fill its socket: an orderly close would wait for it forever."""
    monkeypatch.setattr(host, "host_connections", lambda slots: 1)
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 99.0)
    monkeypatch.setattr(wire, "TOKEN_VARIABLE", "A" * 100_000)  # long refusals fill it sooner

    async def flood():
        async with hosting_peers(token=TOKEN) as open_peer:
            stranger = await open_peer()
            stranger.pause_reading()
            while stranger.unsent < 1 << 20:  # the host reads no more requests
                stranger.send(HEALTH * 100)
                await asyncio.sleep(0.001)
            caller = await open_peer(WITH_TOKEN)
            assert (await caller.answer())[0] == 200
            await until(lambda: stranger.is_disconnected)

    asyncio.run(flood())


def test_an_idle_caller_is_disconnected(monkeypatch):
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 1.0)

    async def wait():
        async with hosting_peers() as open_peer:
            idle = await open_peer(HEALTH)
            assert (await idle.answer())[0] == 200
            assert await idle.rest() == b""
            slow = await open_peer(HEALTH)
            assert (await slow.answer())[0] == 200
            end = asyncio.create_task(slow.rest())
            await drip(slow, b"GET /" + b"a" * 4000, end)
            assert await end == b""

    asyncio.run(wait())


def test_a_slow_body_is_refused(monkeypatch):
    monkeypatch.setattr(host, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(http_server, "LINGER_SECONDS", 0.3)

    async def wait():
        async with hosting_peers() as open_peer:
            slow = await open_peer(post("/episodes", b"{", 4000))
            end = asyncio.create_task(slow.rest())
            await drip(slow, b" ", end)
            assert b"400 Bad Request" in await end
            assert b"the body did not arrive within 0.3 s" in await end
            check = await open_peer(HEALTH)
            assert json.loads((await check.answer())[2])["free"] == EnvConfig().parallel

    asyncio.run(wait())


def test_a_long_call_is_not_ended(monkeypatch):
    for module, name in (
        (http_server, "HEADER_SECONDS"),
        (http_server, "IDLE_SECONDS"),
        (host, "BODY_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 1.0)

    class Slow(FakeEnv):
        async def start(self, task):
            await asyncio.sleep(2.5)
            return await super().start(task)

    async def wait():
        async with hosted(Slow, CONFIG) as address, hosts_at(CONFIG, address).lease() as env:
            await env.start(TASK)

    asyncio.run(wait())


def test_a_new_connection_replaces_the_oldest_stranger(monkeypatch):
    monkeypatch.setattr(host, "host_connections", lambda slots: 4)

    async def crowd():
        async with hosting_peers(token=TOKEN) as open_peer:
            caller = await open_peer(WITH_TOKEN)
            assert (await caller.answer())[0] == 200
            strangers = [await open_peer(HEALTH) for _ in range(3)]
            assert [(await stranger.answer())[0] for stranger in strangers] == [401] * 3
            late = await open_peer(WITH_TOKEN)
            assert (await late.answer())[0] == 200
            assert await strangers[0].rest() == b""
            for peer, content in [(caller, WITH_TOKEN), (late, WITH_TOKEN), (strangers[1], HEALTH)]:
                peer.send(content)
                await peer.answer()
            flood = [await open_peer() for _ in range(20)]
            assert [await peer.rest() for peer in flood[:18]] == [b""] * 18
            assert [peer.is_closed for peer in (*flood[18:], caller, late)] == [False] * 4

    asyncio.run(crowd())


def test_callers_have_a_limit_too(monkeypatch):
    monkeypatch.setattr(host, "host_connections", lambda slots: 2)

    async def crowd():
        async with hosting_peers() as open_peer:
            callers = [await open_peer(HEALTH) for _ in range(2)]
            assert [(await caller.answer())[0] for caller in callers] == [200, 200]
            assert await (await open_peer(HEALTH)).rest() == b""
            callers[0].drop()
            close = HEALTH[:-2] + b"Connection: close\r\n\r\n"
            while not (await (await open_peer(close)).rest()).startswith(b"HTTP/1.1 200 OK"):
                pass

    asyncio.run(crowd())


@pytest.mark.parametrize(
    "headers",
    [b"A: b\r\n" * 65, b"A: " + b"b" * 9000 + b"\r\n", b"b" * 9000 + b": b\r\n"],
    ids=["number", "value", "name"],
)
def test_headers_have_limits(headers):
    async def send():
        async with hosting_peers() as open_peer:
            peer = await open_peer(HEALTH[:-2] + headers + b"\r\n")
            assert (await peer.rest()).startswith(b"HTTP/1.0 400 Bad Request")

    asyncio.run(send())


@pytest.mark.parametrize("call", ["start", "step"])
def test_a_caller_that_disconnects_during_a_call_frees_its_slot(call, caplog):
    made, begun = [], asyncio.Event()

    class Endless(FakeEnv):
        def __init__(self):
            super().__init__()
            made.append(self)
            setattr(self, call, self._hang)

        async def _hang(self, _):
            begun.set()
            await asyncio.Event().wait()

    async def leave():
        async with hosting_peers(Endless, parallel=1) as open_peer:
            check = await open_peer(post("/episodes", b"{}"))
            path = f"/episodes/{(await check.answer())[1][wire.EPISODE]}"
            bodies = {"start": {"task": wire.task_to_json(TASK)}, "step": {"actions": [{"do": "Wait"}]}}
            peer = await open_peer(post(f"{path}/start", json.dumps(bodies["start"]).encode()))
            if call == "step":
                await peer.answer()
                peer.send(post(f"{path}/step", json.dumps(bodies["step"]).encode()))
            await begun.wait()
            peer.drop()
            free = 0
            while not free:
                check.send(HEALTH)
                free = json.loads((await check.answer())[2])["free"]

    asyncio.run(leave())
    assert made[0].calls[-1] == "close"
    assert caplog.records == []


def test_a_caller_that_disconnects_during_its_body_is_not_logged(caplog, monkeypatch):
    begun, ended, read = asyncio.Event(), asyncio.Event(), host._body

    async def observed(*arguments):
        begun.set()
        try:
            return await read(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(host, "_body", observed)

    async def leave():
        async with hosting_peers() as open_peer:
            peer = await open_peer(post("/episodes", b"{", 4000))
            await begun.wait()
            peer.drop()
            await ended.wait()

    asyncio.run(leave())
    assert caplog.records == []


@pytest.mark.slow
def test_bad_requests_do_not_fill_the_log(tmp_path):
    host = HostCommand(tmp_path, "--env", FAKE, "--slots", "2", "--listen", "127.0.0.1:0")
    try:
        for _ in range(500):
            with connect(host.address) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n")
                assert b"400 Bad Request" in stranger.recv(4096)
    finally:
        _, _, written = host.end(signal.SIGTERM)
    assert "497 more like this: aiohttp.server: Error handling request from %s" in written
    assert len(written) < 10_000
