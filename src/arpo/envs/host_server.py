"""The network side of `arpo env-host`: its addresses, and limits against strangers.

A connection belongs to a caller once one of its requests was authorised; until then it belongs to a stranger.
Strangers have HEADER_SECONDS. If the host has as many connections as it may have, a new one replaces the
oldest stranger's; if there is none, the new one is closed.
"""

from __future__ import annotations

import asyncio
import logging
import re
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from weakref import WeakSet

from aiohttp import web

from arpo.envs import wire
from arpo.errors import UserError
from arpo.processes.environment import MIN_SECRET_LENGTH, is_loopback

HEADER_SECONDS = 10.0  # from connecting to the end of the first authorised header
IDLE_SECONDS = 75.0  # between requests; clients should drop idle connections first (aiohttp: after 15 s)
LINGER_SECONDS = 10.0  # for reading the rest of a refused body: the caller may send it before it reads
SHUTDOWN_SECONDS = 1.0  # for running calls when the host stops
ACCEPT_RETRY_SECONDS = 1.0
MAX_HEADERS, MAX_HEADER_BYTES = 64, 4096  # number of headers; size of one header
MAX_PATH_BYTES = 8190
BACKLOG = 512  # connections waiting to be accepted
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """An address to listen on, from `env.listen`."""

    host: str
    port: int  # 0: any free port

    @classmethod
    def read(cls, text: str) -> Listen:
        """Parse "127.0.0.1:8700" or "[::1]:0"."""
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not (host and re.fullmatch(r"[0-9]{1,5}", port) and int(port) < 65536):
            raise UserError(f"env.listen = {text!r}: not HOST:PORT: use for example 127.0.0.1:8700")
        return cls(host=host, port=int(port))

    def checked(self, token: str | None) -> Listen:
        """Return self. Raises UserError for an address beyond loopback without a token."""
        if token is None and not is_loopback(self.host):
            raise UserError(
                f"env.listen: {self.host} is reachable from other machines, but there is no token: set "
                f"{wire.TOKEN_VARIABLE} on the host and on its callers to the same secret of at least "
                f"{MIN_SECRET_LENGTH} characters, or listen on 127.0.0.1"
            )
        return self


def raise_descriptor_limit(slots: int) -> None:
    """Raise the limit of open files, if necessary, as far as this process may.

    Raises UserError if the limit does not allow a connection for each slot.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * _wanted_connections(slots)
    if _is_below(soft, wanted):
        soft = hard if _is_below(hard, wanted) else wanted
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if (most := connection_limit(slots)) < slots:
        raise UserError(
            f"env.parallel = {slots}: the limit of {soft} open files is too low: raise it with "
            f"`ulimit -n {wanted}`, or use at most {most} slots"
        )


def connection_limit(slots: int) -> int:
    """Maximum number of open connections. Environments need open files too: half of the limit is theirs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _wanted_connections(slots)
    return soft // 2 if _is_below(soft, 2 * wanted) else wanted


def _wanted_connections(slots: int) -> int:
    return 64 + 4 * slots  # several runs may share a host, each with a connection per lease


def _is_below(limit: int, wanted: int) -> bool:
    return limit != resource.RLIM_INFINITY and limit < wanted


@dataclass(frozen=True, slots=True)
class _Connection:
    socket: socket.socket
    deadline: asyncio.TimerHandle  # closes a stranger's connection


class Connections:
    """The open connections of a host, oldest first, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[asyncio.Transport, _Connection] = {}
        self._callers: WeakSet[asyncio.Transport] = WeakSet()

    def mark_caller(self, request: web.Request) -> None:
        """Exempt the connection of an authorised request from the limits for strangers."""
        if request.transport is not None:
            self._callers.add(request.transport)

    async def accept(self, listener: socket.socket, server: web.Server) -> None:
        """Accept connections until this task is cancelled. A fault costs one connection, never the host."""
        while True:
            try:
                await self._accept_one(listener, server)
                continue
            except OSError as error:  # for example, environments use all descriptors
                _log.warning("cannot accept a connection: %s", error)
            except Exception:  # boundary: a host that no longer accepts connections looks like a healthy one
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


@asynccontextmanager
async def listening(
    application: web.Application, listen: Listen, connections: Connections
) -> AsyncIterator[str]:
    """Serve the application during the block and yield its URL.

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
    listeners = _bind(listen)
    await runner.setup()
    assert runner.server is not None
    accepting = [asyncio.create_task(connections.accept(one, runner.server)) for one in listeners]
    try:
        name = f"[{listen.host}]" if ":" in listen.host else listen.host
        yield f"http://{name}:{listeners[0].getsockname()[1]}"
    finally:
        for task in accepting:
            task.cancel()
        await asyncio.wait(accepting)
        for listener in listeners:
            listener.close()
        await runner.cleanup()


def _bind(listen: Listen) -> list[socket.socket]:
    """Return a listening socket per address of the name: "localhost" may have two."""
    with ExitStack() as opened:
        try:
            found = socket.getaddrinfo(
                listen.host, listen.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            listeners = [
                opened.enter_context(socket.create_server(address, family=family, backlog=BACKLOG))
                for family, _, _, _, address in dict.fromkeys(found)
            ]
        except OSError as error:
            raise UserError(f"env.listen = {listen.host}:{listen.port}: {error.strerror}") from error
        opened.pop_all()
    for listener in listeners:
        listener.setblocking(False)
    return listeners
