"""The only way out of the browser's sandbox: an HTTP proxy that reaches the allowed origins of each episode.

The sandbox has no network. Its loopback interface has one listening socket, on which this process accepts.
Each episode has an address of its own there (127.1.0.0, 127.1.0.1, …): it tells whose connection it is.
"""

from __future__ import annotations

import asyncio
import itertools
import mimetypes
import socket
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from arpo.errors import UserError

PORT = 3128  # in the sandbox
MAX_CONNECTIONS = 64  # of one episode
_MAX_HEAD = 2**16  # bytes
_HEAD_SECONDS = 30.0
_CHUNK = 2**16
_FIRST = int.from_bytes(socket.inet_aton("127.1.0.0"))
_ADDRESSES = 2**22  # up to 127.64.255.255
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
# Chromium asks these for updates, spelling and suggestions. No page asked for them: they are not counted.
_OWN_HOSTS = (
    "www.google.com", "accounts.google.com", "content-autofill.googleapis.com", "update.googleapis.com",
    "optimizationguide-pa.googleapis.com", "clients2.google.com", "safebrowsing.googleapis.com",
    "redirector.gvt1.com", "edgedl.me.gvt1.com", "android.clients.google.com", "mtalk.google.com",
)  # fmt: skip

Origin = tuple[str, int]  # host and port


def origin_of(url: str, place: str) -> Origin:
    """Host and port of a URL. Raises UserError, which names `place`, for one without a host.

    >>> origin_of("https://shop.test/cart?id=3", "tasks.json"), origin_of("http://[::1]:8000", "tasks.json")
    (('shop.test', 443), ('::1', 8000))
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"{place}: {url!r} is no URL: {error}") from None
    if parts.scheme not in _PORTS or not host:
        raise UserError(f"{place}: {url!r} must begin with http:// or https:// and name a host")
    return host, port or _PORTS[parts.scheme]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What the pages of one episode reach. `folders` are served by the proxy itself, by host name."""

    allowed: Collection[Origin]
    folders: Mapping[str, Path] = field(default_factory=dict)
    blocked: Counter[str] = field(default_factory=Counter)  # refused connections by "host:port"
    connections: set[asyncio.Task[None]] = field(default_factory=set)


class Proxy:
    def __init__(self) -> None:
        self._episodes: dict[str, Access] = {}
        self._numbers = itertools.count()
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        self._server = await asyncio.start_server(self._accept, sock=listening, limit=_MAX_HEAD)

    def add(self, access: Access) -> str:
        """The address of the proxy for an episode."""
        address = socket.inet_ntoa((_FIRST + next(self._numbers) % _ADDRESSES).to_bytes(4))
        self._episodes[address] = access
        return f"http://{address}:{PORT}"

    def remove(self, address: str) -> None:
        """End all connections of the episode."""
        if access := self._episodes.pop(str(urlsplit(address).hostname), None):
            for connection in access.connections:
                connection.cancel()

    def close(self) -> None:
        if self._server is not None:
            with suppress(RuntimeError):  # the event loop has ended
                self._server.close()
        for address in list(self._episodes):
            self.remove(f"http://{address}")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        access = self._episodes.get(writer.get_extra_info("sockname")[0])
        task = asyncio.current_task()
        assert task is not None
        try:
            if access is not None and len(access.connections) < MAX_CONNECTIONS:
                access.connections.add(task)
                await _serve(access, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            pass  # either side closed its connection, or sent no HTTP
        except asyncio.CancelledError:
            pass  # the episode has ended
        finally:
            if access is not None:
                access.connections.discard(task)
            writer.close()


async def _serve(access: Access, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    async with asyncio.timeout(_HEAD_SECONDS):
        head = await reader.readuntil(b"\r\n\r\n")
    line, *headers = head.decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    tunnel = method == "CONNECT"
    host, port = origin_of(f"https://{target}" if tunnel else target, "proxy")
    if not tunnel and host in access.folders:
        _send_file(writer, access.folders[host], urlsplit(target).path)
        return await writer.drain()
    if (host, port) not in access.allowed:
        if host not in _OWN_HOSTS:
            access.blocked[f"{host}:{port}"] += 1
        return _answer(writer, "403 Forbidden", f"{host}:{port} is not an allowed origin of this task")
    try:
        from_origin, to_origin = await asyncio.open_connection(host, port)
    except OSError as error:
        return _answer(writer, "502 Bad Gateway", f"{host}:{port}: {error}")
    try:
        if tunnel:
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            to_origin.write(_request(method, target, headers))
        async with asyncio.TaskGroup() as copying:
            sending = copying.create_task(_copy(reader, to_origin))
            await _copy(from_origin, writer)
            sending.cancel()
    except* OSError:
        pass
    finally:
        to_origin.close()


def _request(method: str, target: str, headers: list[str]) -> bytes:
    """The request for the origin. It closes the connection after its answer: the next may be for another."""
    parts = urlsplit(target)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    upgrade = any(header.lower().startswith("upgrade:") for header in headers)
    kept = [
        header
        for header in filter(None, headers)
        if upgrade or header.split(":")[0].lower() not in ("connection", "proxy-connection", "keep-alive")
    ]
    closing = [] if upgrade else ["Connection: close"]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *kept, *closing, "", ""]).encode("latin-1")


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        target.write(chunk)
        await target.drain()
    if target.can_write_eof():
        with suppress(OSError):
            target.write_eof()


def _send_file(writer: asyncio.StreamWriter, folder: Path, path: str) -> None:
    file = (folder / unquote(path).lstrip("/")).resolve()
    if not file.is_relative_to(folder.resolve()) or not file.is_file():
        return _answer(writer, "404 Not Found", "no such file")
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    kind += "; charset=utf-8" if kind.startswith("text/") else ""
    _answer(writer, "200 OK", file.read_bytes(), kind)


def _answer(writer: asyncio.StreamWriter, status: str, body: str | bytes, kind: str = "text/plain") -> None:
    content = body.encode() if isinstance(body, str) else body
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
    writer.write(f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + content)
