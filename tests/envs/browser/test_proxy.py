"""The proxy of the browser's sandbox: allowed origins only, by episode."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from arpo.envs.browser.proxy import MAX_CONNECTIONS, Access, Proxy, origin_of
from arpo.errors import UserError


async def origin(reader, writer):
    """An application: answers with the head of the request and its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.read(3) if head.startswith(b"POST") else b""
    content = head.split(b"\r\n")[0] + body
    if b"Connection: close" in head:
        content += b" closing"
    writer.write(
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(content) + content
    )
    await writer.drain()
    writer.close()


@asynccontextmanager
async def proxied(**access):
    """A proxy with one episode whose pages reach one application. Yields a function that asks it."""
    server = await asyncio.start_server(origin, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    given = Access(allowed={("127.0.0.1", port)}, **access)
    proxy = Proxy()
    host = proxy.add(given).removeprefix("http://").partition(":")[0]
    await proxy.start(socket.create_server((host, 0)))
    assert proxy._server is not None
    address = host, proxy._server.sockets[0].getsockname()[1]

    async def ask(text):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(text.replace("PORT", str(port)).encode())
        try:
            return (await reader.read()).decode("latin-1")
        except ConnectionResetError:
            return ""
        finally:
            writer.close()

    yield ask, given, address, proxy
    proxy.close()
    server.close()


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_an_allowed_origin_answers_and_the_connection_is_closed():
    async def scenario():
        async with proxied() as (ask, access, _, _):
            answer = await ask(
                "GET http://127.0.0.1:PORT/a?b=c HTTP/1.1\r\nProxy-Connection: keep-alive\r\n\r\n"
            )
            assert answer.endswith("GET /a?b=c HTTP/1.1 closing")
            answer = await ask("POST http://127.0.0.1:PORT/ HTTP/1.1\r\nContent-Length: 3\r\n\r\nxyz")
            assert answer.endswith("POST / HTTP/1.1xyz closing")
            assert not access.blocked

    run(scenario)


def test_a_tunnel_passes_bytes():
    async def scenario():
        async with proxied() as (ask, _, _, _):
            answer = await ask("CONNECT 127.0.0.1:PORT HTTP/1.1\r\n\r\nGET /inside HTTP/1.1\r\n\r\n")
            assert answer.startswith("HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK")
            assert answer.endswith("GET /inside HTTP/1.1")

    run(scenario)


@pytest.mark.parametrize(
    "request_line",
    ["GET http://evil.test/ HTTP/1.1", "CONNECT evil.test:80 HTTP/1.1", "GET http://127.0.0.1:1/ HTTP/1.1"],
)
def test_another_origin_is_refused_and_counted(request_line):
    async def scenario():
        async with proxied() as (ask, access, _, _):
            assert (await ask(f"{request_line}\r\n\r\n")).startswith("HTTP/1.1 403")
            assert sum(access.blocked.values()) == 1

    run(scenario)


def test_what_the_browser_asks_for_itself_is_refused_and_not_counted():
    async def scenario():
        async with proxied() as (ask, access, _, _):
            assert (await ask("CONNECT www.google.com:443 HTTP/1.1\r\n\r\n")).startswith("HTTP/1.1 403")
            assert not access.blocked

    run(scenario)


@pytest.mark.parametrize(
    "text",
    ["\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/1.1\r\n\r\n", "CONNECT a:b:c HTTP/1.1\r\n\r\n", "x" * 70_000],
)
def test_what_is_no_http_gets_no_answer(text):
    async def scenario():
        async with proxied() as (ask, _, _, _):
            assert await ask(text) == ""

    run(scenario)


def test_an_address_without_an_episode_gets_no_answer():
    async def scenario():
        async with proxied() as (ask, _, (host, port), proxy):
            proxy.remove(f"http://{host}:{port}")
            assert await ask("GET http://127.0.0.1:PORT/ HTTP/1.1\r\n\r\n") == ""

    run(scenario)


def test_a_folder_is_served_without_its_neighbours(tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a b.html").write_text("<p>")
    (tmp_path / "secret").write_text("key")
    (tmp_path / "site" / "link").symlink_to(tmp_path / "secret")

    async def scenario():
        async with proxied(folders={"wob.test": tmp_path / "site"}) as (ask, _, _, _):
            found = await ask("GET http://wob.test/a%20b.html HTTP/1.1\r\n\r\n")
            assert "text/html" in found
            assert found.endswith("<p>")
            for path in ("/../secret", "/%2e%2e/secret", "/link", "/", "/%00"):
                assert "key" not in await ask(f"GET http://wob.test{path} HTTP/1.1\r\n\r\n")

    run(scenario)


def test_the_end_of_an_episode_ends_its_connections():
    async def scenario():
        async with proxied() as (_, access, (host, port), proxy):
            connections = [await asyncio.open_connection(host, port) for _ in range(MAX_CONNECTIONS)]
            one_more, _ = await asyncio.open_connection(host, port)
            assert await one_more.read() == b""
            assert len(access.connections) == MAX_CONNECTIONS
            proxy.remove(f"http://{host}:{port}")
            for reader, _ in connections:
                assert await reader.read() == b""

    run(scenario)


def test_an_origin_has_a_host():
    with pytest.raises(UserError, match="task t: 'shop' must begin with http"):
        origin_of("shop", "task t")
