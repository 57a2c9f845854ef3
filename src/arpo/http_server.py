"""The HTTP server of `arpo env-host` and `arpo view`, with limits against strangers.

    connections = Connections(connection_limit())
    async with listening(application, bind("127.0.0.1", 0), connections) as port:
        ...

A connection belongs to a caller once one of its requests was authorised (`mark_caller`); until then it
belongs to a stranger. Strangers have HEADER_SECONDS. If the server has as many connections as it may have, a
new one replaces the oldest stranger's; if there is none, the new one is closed.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from weakref import WeakSet

from aiohttp import web

STRANGERS = 64  # connections of strangers that every server has space for
HEADER_SECONDS = 10.0  # from connecting to the end of the first authorised header
IDLE_SECONDS = 75.0  # between requests; clients should drop idle connections first (aiohttp: after 15 s)
LINGER_SECONDS = 10.0  # for reading the rest of a refused body: the caller may send it before it reads
SHUTDOWN_SECONDS = 1.0  # for running calls when the server stops
ACCEPT_RETRY_SECONDS = 1.0
MAX_HEADERS, MAX_HEADER_BYTES = 64, 8190  # number; size of one: a browser sends the cookies of all ports
MAX_PATH_BYTES = 8190
BACKLOG = 512  # connections waiting to be accepted
_log = logging.getLogger(__name__)


def connection_limit(wanted: int = STRANGERS) -> int:
    """Maximum number of open connections: `wanted`, or half of the open files that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 2 if is_below(soft, 2 * wanted) else wanted


def is_below(limit: int, wanted: int) -> bool:
    """Whether a limit of `resource` does not allow as many."""
    return limit != resource.RLIM_INFINITY and limit < wanted


@dataclass(frozen=True, slots=True)
class _Connection:
    socket: socket.socket
    deadline: asyncio.TimerHandle  # closes a stranger's connection


class Connections:
    """The open connections of a server, oldest first, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[asyncio.Transport, _Connection] = {}
        self._callers: WeakSet[asyncio.Transport] = WeakSet()

    def mark_caller(self, request: web.Request) -> None:
        """Exempt the connection of an authorised request from the limits for strangers."""
        if request.transport is not None:
            self._callers.add(request.transport)

    async def accept(self, listener: socket.socket, server: web.Server) -> None:
        """Accept connections until this task is cancelled. A fault costs one connection, never the server."""
        while True:
            try:
                await self._accept_one(listener, server)
                continue
            except OSError as error:  # for example, environments use all descriptors
                _log.warning("cannot accept a connection: %s", error)
            except (
                Exception
            ):  # boundary: a server that no longer accepts connections looks like a healthy one
                _log.exception("cannot accept a connection")
            self._forget_closed()
            await asyncio.sleep(0 if self._close_oldest_stranger() else ACCEPT_RETRY_SECONDS)

    async def _accept_one(self, listener: socket.socket, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        with ExitStack() as refused:
            accepted, _ = await loop.sock_accept(listener)
            refused.callback(accepted.close)
            self._forget_closed()
            if len(self._open) >= self._limit and not self._close_oldest_stranger():
                _log.warning("refused a connection: callers use all %d", self._limit)
                await asyncio.sleep(0)  # sock_accept does not yield while connections are waiting
                return
            transport, _ = await loop.connect_accepted_socket(server, accepted)
            refused.pop_all()
        deadline = loop.call_later(HEADER_SECONDS, self._close_stranger, transport)
        self._open[transport] = _Connection(accepted, deadline)

    def _close_oldest_stranger(self) -> bool:
        """Return False if there is none."""
        return any(self._close_stranger(transport) for transport in list(self._open))

    def _close_stranger(self, transport: asyncio.Transport) -> bool:
        """Return False if the connection is a caller's."""
        if transport in self._callers:
            return False
        self._forget(transport)
        transport.abort()  # `close` would wait until a stranger has read everything
        return True

    def _forget_closed(self) -> None:
        for transport in [key for key, connection in self._open.items() if connection.socket.fileno() < 0]:
            self._forget(transport)

    def _forget(self, transport: asyncio.Transport) -> None:
        self._open.pop(transport).deadline.cancel()


def bind(host: str, port: int) -> list[socket.socket]:
    """A listening socket per address of the name: "localhost" may have two. Port 0: any free one.

    Raises OSError if the address is taken, or is not of this machine.
    """
    with ExitStack() as opened:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listeners = [
            opened.enter_context(socket.create_server(address, family=family, backlog=BACKLOG))
            for family, _, _, _, address in dict.fromkeys(found)
        ]
        opened.pop_all()
    for listener in listeners:
        listener.setblocking(False)
    return listeners


@asynccontextmanager
async def listening(
    application: web.Application, listeners: Sequence[socket.socket], connections: Connections
) -> AsyncIterator[int]:
    """Serve the application during the block, then close the listeners. Yields the port of the first one.

    A call is cancelled if its caller disconnects.
    """
    runner = web.AppRunner(
        application,
        access_log=None,
        shutdown_timeout=SHUTDOWN_SECONDS,
        handler_cancellation=True,
        keepalive_timeout=IDLE_SECONDS,
        lingering_time=LINGER_SECONDS,
        max_line_size=MAX_PATH_BYTES,
        max_headers=MAX_HEADERS,
        max_field_size=MAX_HEADER_BYTES,
    )
    await runner.setup()
    assert runner.server is not None
    accepting = [asyncio.create_task(connections.accept(one, runner.server)) for one in listeners]
    try:
        yield listeners[0].getsockname()[1]
    finally:
        for task in accepting:
            task.cancel()
        await asyncio.wait(accepting)
        for listener in listeners:
            listener.close()
        await runner.cleanup()
