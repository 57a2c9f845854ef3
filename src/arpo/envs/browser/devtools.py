"""Client of Chromium's DevTools protocol, over an inherited socket: no port is open for other programs."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from arpo.errors import EnvError

MAX_MESSAGE = 2**27  # bytes: an 8K screenshot in base64 has less
_END = b"\0"

Json = dict[str, Any]
OnEvent = Callable[[str, Json], None]  # method and parameters


class DevTools:
    """One connection to a browser. Calls of several sessions (tabs) share it.

    Every call raises EnvError if the browser refuses it, or has ended.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._calls: dict[int, tuple[str, asyncio.Future[Json]]] = {}
        self._handlers: dict[str, OnEvent] = {}
        self._count = 0
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def connect(cls, own: socket.socket) -> DevTools:
        return cls(*await asyncio.open_connection(sock=own, limit=MAX_MESSAGE))

    @property
    def ended(self) -> bool:
        return self._reading.done()

    def listen(self, session: str, handler: OnEvent) -> None:
        """Call the handler at each event of the session; "": of the browser."""
        self._handlers[session] = handler

    def forget(self, session: str) -> None:
        self._handlers.pop(session, None)

    def send(self, method: str, session: str = "", **parameters: Any) -> asyncio.Future[Json]:
        """Send a call now; its result can be awaited later. The browser keeps the order of a session."""
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        if self.ended:
            future.set_exception(_ended(method))
            return future
        self._count += 1
        message: Json = {"id": self._count, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._calls[self._count] = method, future
        future.add_done_callback(_seen)
        self._writer.write(json.dumps(message).encode() + _END)
        return future

    async def call(self, method: str, session: str = "", **parameters: Any) -> Json:
        return await self.send(method, session, **parameters)

    def close(self) -> None:
        """End the connection. The event loop that opened it may have ended before."""
        with suppress(RuntimeError):
            self._writer.transport.abort()

    async def _read(self) -> None:
        try:
            while True:
                text = await self._reader.readuntil(_END)
                self._receive(json.loads(text[: -len(_END)]))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            pass
        finally:
            for method, future in self._calls.values():
                if not future.done():
                    future.set_exception(_ended(method))
            self._calls.clear()

    def _receive(self, message: Json) -> None:
        if "id" not in message:
            if handler := self._handlers.get(message.get("sessionId", "")):
                handler(message["method"], message["params"])
            return
        method, future = self._calls.pop(message["id"])
        if future.done():
            return
        if error := message.get("error"):
            future.set_exception(EnvError("browser", f"{method}: {error.get('message', error)}"))
        else:
            future.set_result(message["result"])


def _ended(method: str) -> EnvError:
    return EnvError("browser", f"{method}: the browser has ended")


def _seen(future: asyncio.Future[Json]) -> None:
    """Calls that nobody awaits any more, because a dialog opened: their errors are no news."""
    if not future.cancelled():
        future.exception()
