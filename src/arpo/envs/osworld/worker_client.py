"""Client of one worker process: starts it, sends one call at a time, ends it.

A call that times out or is cancelled leaves the worker busy; `stop` then kills it. The process is gone when
`stop` returns. The caller deletes the worker's folder.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from arpo.envs.osworld.fork_server import ForkServer, Worker
from arpo.envs.osworld.messages import CRASH_FILE, InvalidMessage, encode_message, receive_async
from arpo.errors import EnvError, EnvTimeout

STOP_SECONDS = 30.0  # for a machine to stop; Docker gives a container ten seconds of it


class WorkerClient:
    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self._forking: asyncio.Future[Worker] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._busy = False

    @property
    def worker(self) -> Worker:
        assert self._forking is not None
        return self._forking.result()

    async def start(self) -> None:
        """Waits for a new worker. If this is cancelled, `stop` still ends the worker."""
        self._forking = asyncio.get_running_loop().run_in_executor(None, self._server.fork)
        worker = await asyncio.shield(self._forking)
        worker.connection.setblocking(False)
        self._streams = await asyncio.open_connection(sock=worker.connection)

    async def call(self, name: str, **arguments: Any) -> tuple[Any, bytes]:
        """The worker's answer and screenshot. Raises the worker's errors."""
        if self._streams is None:
            raise EnvError(name, "the environment is not running")
        if self._busy:
            raise EnvError(name, "an earlier call was cancelled before it was answered")
        self._busy = True
        reader, writer = self._streams
        try:
            writer.write(encode_message({"call": name, **arguments}))
            await writer.drain()
            answer, screenshot = await receive_async(reader)
        except (OSError, EOFError, InvalidMessage) as error:
            raise EnvError(name, f"the worker died{self._crash_reason()}") from error
        self._busy = False
        if fault := answer.get("error"):
            kind = EnvTimeout if fault["late"] else EnvError
            raise kind(fault["where"], fault["message"])
        return answer, screenshot

    async def stop(self) -> Worker | None:
        """Ends the worker and returns it; None if none was started.

        A busy worker is killed. If it holds a virtual machine, it gets SIGTERM and `STOP_SECONDS` first.
        """
        if self._forking is None:
            return None
        try:
            worker = await self._forking
        except Exception:  # `start` has raised it
            return None
        try:
            async with asyncio.timeout(STOP_SECONDS):
                if self._streams is not None and not self._busy:
                    await self.call("close")
                elif self._server.gentle:
                    worker.signal(signal.SIGTERM)
                    await _wait_for_exit(worker)
        except (TimeoutError, EnvError):
            pass  # if the machine still runs, its MACHINE_FILE still exists
        finally:
            worker.signal(signal.SIGKILL)
            if self._streams is not None:
                self._streams[1].close()
                self._streams = None
            worker.connection.close()
        await _wait_for_exit(worker)
        await asyncio.to_thread(worker.release)
        return worker

    def _crash_reason(self) -> str:
        crash = self.worker.folder / CRASH_FILE
        try:
            reason = crash.read_text("utf-8", "replace").partition("\n")[0]
        except OSError:
            return ""
        return f": {reason}" if reason else ""


async def _wait_for_exit(worker: Worker) -> None:
    """The kernel makes a pidfd readable when its process ends."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(worker.pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(worker.pidfd)
