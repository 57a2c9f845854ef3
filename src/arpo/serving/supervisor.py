"""Starts servers, restarts dead or hanging ones, and ends them all.

    async with supervised(program, places, settings) as servers:
        …  # all servers are healthy

A restart takes about a minute, and the server then has the weights of its model folder: the engine loads the
newest weights into it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import aiohttp

from arpo.engines.vllm_access import key_headers
from arpo.errors import UserError, printable
from arpo.serving.server_process import ServerProcess
from arpo.serving.vllm_server import link_package

START_ATTEMPTS = 3
MAX_PAUSE_SECONDS = 60.0  # between two starts of a server; pauses double from one second
STABLE_SECONDS = 600.0  # a server that ran this long is restarted after the shortest pause
LAST_PORT = 65_535
CHECK_SECONDS = 30.0
IN_USE = os.strerror(errno.EADDRINUSE)
ENGINE_ROUTE = "/is_paused"  # asks the engine process; /health does not, so it would not find one that hangs


class Program(Protocol):
    """A kind of server, for example `VllmServer`."""

    def command(self, host: str, port: int) -> list[str]: ...

    def environment(self, packages: Path, gpu: str, key: str) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Address and GPU of one server. `gpu` is as in CUDA_VISIBLE_DEVICES; "" on a CPU."""

    host: str
    port: int
    gpu: str = ""

    @property
    def url(self) -> str:
        """The URL for callers on this machine. Example: "http://127.0.0.1:9000"."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How servers are watched: log folder, key ("" for none), timeouts in seconds, receiver of notes."""

    log_dir: Path
    key: str
    start_seconds: float
    report: Callable[[str], None]
    poll_seconds: float = 0.5
    check_seconds: float = CHECK_SECONDS  # for one answer of a healthy server
    failed_checks: int = 4  # in a row, until a server counts as hanging
    grace_seconds: float = 10.0  # for a clean exit of a server


@dataclass(slots=True, kw_only=True)
class Server:
    """State of one supervised server."""

    place: Place
    log: Path
    state: Literal["starting", "healthy", "down"] = "starting"
    restarts: int = 0
    was_healthy: asyncio.Event = field(default_factory=asyncio.Event)

    def address(self) -> str:
        return self.place.url


@asynccontextmanager
async def supervised(
    program: Program, places: Sequence[Place], settings: Supervision
) -> AsyncIterator[list[Server]]:
    """Run servers during the block. It begins when all are healthy.

    Raises UserError with the last lines of a log if a server dies at each of its first starts.
    """
    servers = [Server(place=at, log=settings.log_dir / f"server-{at.port}.log") for at in places]
    ports = ", ".join(str(at.port) for at in places)
    settings.report(f"starting vLLM servers at ports {ports}: a minute or more; logs: {settings.log_dir}")
    async with aiohttp.ClientSession(headers=key_headers(settings.key)) as session:
        tasks = [asyncio.create_task(_Watch(program, one, settings, session).run()) for one in servers]
        try:
            await _all_healthy(servers, tasks)
            yield servers
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _all_healthy(servers: Sequence[Server], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until every server was healthy, or one of `tasks` raises: each of them has its own timeouts."""

    async def wait_for_each() -> None:
        for server in servers:
            await server.was_healthy.wait()

    healthy = asyncio.create_task(wait_for_each())
    try:
        await asyncio.wait([healthy, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in filter(asyncio.Task.done, tasks):
            task.result()
    finally:
        healthy.cancel()


class _Watch:
    """Keeps one server running until its task is cancelled."""

    def __init__(
        self, program: Program, server: Server, settings: Supervision, session: aiohttp.ClientSession
    ) -> None:
        self._program, self._server, self._settings, self._session = program, server, settings, session

    async def run(self) -> None:
        """Raises UserError if the server dies at each of its first starts. Later it is restarted forever."""
        server, failures = self._server, 0
        while True:
            began = time.monotonic()
            try:
                reason = _port_problem(server.place.host, server.place.port) or await self._run_once()
            except OSError as error:  # for example a full disk
                reason = str(error)
            is_stable = server.was_healthy.is_set() and time.monotonic() - began > STABLE_SECONDS
            failures = 1 if is_stable else failures + 1
            if failures >= START_ATTEMPTS and not server.was_healthy.is_set():
                raise UserError(
                    f"the vLLM server at port {server.place.port} did not start in {failures} attempts: "
                    f"{reason}; log: {server.log}"
                )
            pause = restart_pause(failures)
            self._settings.report(f"{server.place.url}: {reason}; restart in {pause:g} s; log: {server.log}")
            await asyncio.sleep(pause)
            server.restarts += 1
            server.state = "starting"

    async def _run_once(self) -> str:
        """Run the server until it is down. Returns the reason."""
        process = self._start()
        try:
            if reason := await self._until_healthy(process):
                return f"{reason}; its last errors: {printable(process.last_errors())}"
            self._server.state = "healthy"
            self._server.was_healthy.set()
            self._settings.report(f"{self._server.place.url}: ready")
            return await self._until_down(process)
        finally:
            self._server.state = "down"
            await process.stop()

    def _start(self) -> ServerProcess:
        place, settings = self._server.place, self._settings
        packages = link_package(settings.log_dir)
        return ServerProcess(
            self._program.command(place.host, place.port),
            self._program.environment(packages, place.gpu, settings.key),
            self._server.log,
            settings.grace_seconds,
        )

    async def _until_healthy(self, process: ServerProcess) -> str | None:
        """None once the server answers; otherwise the reason why it does not."""
        end = time.monotonic() + self._settings.start_seconds
        while time.monotonic() < end:
            if reason := process.exit_reason:
                return reason
            if await self._answers("/health"):
                return None
            await asyncio.sleep(self._settings.poll_seconds)
        return f"not ready after {self._settings.start_seconds:g} s"

    async def _until_down(self, process: ServerProcess) -> str:
        """The reason why the server is down: it ended, or it hangs.

        One failed check proves nothing: a long step of this process, such as an update of the learner, delays
        its answer. So does the load of new weights in the server. A check that fails at once counts after
        `check_seconds`: a server that ends refuses connections first.
        """
        failed = 0
        while failed < self._settings.failed_checks:
            end = time.monotonic() + self._settings.check_seconds
            check = asyncio.create_task(self._answers(ENGINE_ROUTE))
            try:
                while not check.done() or (not check.result() and time.monotonic() < end):
                    if reason := process.exit_reason:
                        return reason
                    await asyncio.sleep(self._settings.poll_seconds)
            finally:
                check.cancel()
            failed = 0 if check.result() else failed + 1
        return f"no answer to {failed} health checks of {self._settings.check_seconds:g} s"

    async def _answers(self, route: str) -> bool:
        timeout = aiohttp.ClientTimeout(total=self._settings.check_seconds)
        try:
            async with self._session.get(f"{self._server.place.url}{route}", timeout=timeout) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False


def restart_pause(failures: int) -> float:
    """Seconds before the next start, after so many failed ones.

    >>> [restart_pause(failures) for failures in (1, 2, 3, 2000)]
    [1.0, 2.0, 4.0, 60.0]
    """
    return min(MAX_PAUSE_SECONDS, 2.0 ** min(failures - 1, 16))  # a float has no 2.0 ** 1999


def choose_places(host: str, first_port: int, gpus: Sequence[str], *, skip_used: bool) -> list[Place]:
    """One place per entry of `gpus`, on consecutive ports.

    A port in use is skipped, or raises UserError if callers rely on the numbers (`skip_used` false).
    """
    places: list[Place] = []
    port = first_port
    for gpu in gpus:
        while (reason := _port_problem(host, port)) is not None:
            if not skip_used:
                remedy = "choose another port with --port" if reason == IN_USE else "check --host"
                raise UserError(f"{host}:{port}: {reason}: {remedy}")
            port += 1
        places.append(Place(host=host, port=port, gpu=gpu))
        port += 1
    return places


def _port_problem(host: str, port: int) -> str | None:
    """Why a server cannot listen there; None if it can. Raises UserError beyond the last port."""
    if port > LAST_PORT:
        raise UserError(f"engine.port: no free port up to {LAST_PORT}: choose a smaller one")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family):
            return None
    except OSError as error:
        return (error.strerror or str(error)).partition(" (while")[0]  # the rest repeats the address
