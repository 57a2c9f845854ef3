"""A worker and the talk with it: one question at a time, and an end that always comes.

A question that is given up (timed out, cancelled) leaves the worker busy for good; `end` then kills it. When
`end` returns, the process is gone. Its folder is left to whoever began.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from arpo.envs.osworld.fork_server import Nursery, Worker
from arpo.envs.osworld.messages import Garbled, packed, receive_async
from arpo.envs.osworld.worker import CRASH_FILE
from arpo.errors import EnvError, EnvTimeout

STOP_SECONDS = 30.0  # for a machine to stop; a container is given ten to end by itself


class Session:
    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._forking: asyncio.Future[Worker] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._busy = False

    @property
    def worker(self) -> Worker:
        """The one that was begun."""
        assert self._forking is not None
        return self._forking.result()

    async def begin(self) -> None:
        """Waits for a worker. Cancelled meanwhile, `end` still finds it."""
        self._forking = asyncio.get_running_loop().run_in_executor(None, self._nursery.fork)
        worker = await asyncio.shield(self._forking)
        worker.connection.setblocking(False)
        self._streams = await asyncio.open_connection(sock=worker.connection)

    async def ask(self, call: str, **words: Any) -> tuple[Any, bytes]:
        """The worker's answer and picture; its faults are raised here."""
        if self._streams is None:
            raise EnvError(call, "the environment is not running")
        if self._busy:
            raise EnvError(call, "an earlier call was given up before it was answered")
        self._busy = True
        reader, writer = self._streams
        try:
            writer.write(packed({"call": call, **words}))
            await writer.drain()
            answer, picture = await receive_async(reader)
        except (OSError, EOFError, Garbled) as error:
            raise EnvError(call, f"the worker died{self._last_words()}") from error
        self._busy = False
        if fault := answer.get("error"):
            kind = EnvTimeout if fault["late"] else EnvError
            raise kind(fault["where"], fault["message"])
        return answer, picture

    async def end(self) -> Worker | None:
        """The worker that was, if any. A busy one is killed; gently, where a virtual machine is at stake."""
        if self._forking is None:
            return None
        try:
            worker = await self._forking
        except Exception:  # told to whoever began
            return None
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if self._streams is not None and not self._busy:
                    await self.ask("close")
                elif self._nursery.gentle:
                    worker.signal(signal.SIGTERM)
                    await _gone(worker)
        except (TimeoutError, EnvError):
            pass  # whether its machine has stopped is told by the note that is left
        finally:
            worker.signal(signal.SIGKILL)
            if self._streams is not None:
                self._streams[1].close()
                self._streams = None
            worker.connection.close()
        await _gone(worker)
        worker.release()
        return worker

    def _last_words(self) -> str:
        crash = self.worker.folder / CRASH_FILE
        try:
            words = crash.read_text("utf-8", "replace").partition("\n")[0]
        except OSError:
            return ""
        return f": {words}" if words else ""


async def _gone(worker: Worker) -> None:
    """Waits for the process to end; the kernel makes its handle readable then."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(worker.handle, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(worker.handle)
