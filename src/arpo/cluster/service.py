"""A service: one program on a node of the cluster, run and watched by a Ray actor.

`Service` is the class of the actor. It runs a vLLM server or an environment host in a process of its own,
and restarts it if it dies or hangs. Its processes end with the actor, however that ends. If the actor or its
node is lost, Ray makes a new one, perhaps on another node; it starts when the driver checks it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import aiohttp

from arpo import __version__
from arpo.config import Config
from arpo.config.recipe import keys, load_config, value
from arpo.engines.vllm_access import key_headers
from arpo.envs import wire
from arpo.envs.child_host import ChildHost
from arpo.envs.remote import HostLost
from arpo.errors import UserError, printable
from arpo.serving.load import read_loads
from arpo.serving.own_servers import OwnServers
from arpo.serving.supervisor import Server
from arpo.serving.vllm_server import find_server

Kind = Literal["server", "host"]
RESTART_SECONDS, _LONGEST_PAUSE = 10.0, 300.0  # after a program that did not start; doubled each time
_POLL_SECONDS = 0.2
_CHECK_SECONDS = 10.0  # between two checks of an environment host, and timeout of a check
_FAILED_CHECKS = 6  # in a row, until a host counts as hanging
_FAILED_STARTS = 5  # in a row, until the fault is reported
_MAX_FAULT = 2_000  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The work of an actor.

    `settings` has all config keys. `folder` is the current folder of the driver: the actor uses it too, if it
    exists on its node. `logs`: folder on the node for the logs of servers.
    """

    kind: Kind
    name: str
    settings: Mapping[str, str | float]
    folder: str
    logs: str
    version: str = __version__

    @classmethod
    def of(cls, config: Config, kind: Kind, name: str, logs: Path) -> Order:
        settings = {key.name: value(config, key.name) for key in keys()}
        folder = Path.cwd()
        return cls(kind=kind, name=name, settings=settings, folder=str(folder), logs=str(folder / logs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The state of a service. `url` is "" until the program has answered once."""

    incarnation: str  # changes when Ray restarts the actor
    node: str
    url: str
    restarts: int  # of the program, by this incarnation
    fault: str  # why the last start failed


class Program(Protocol):
    """The program of a service, during `running`."""

    @property
    def url(self) -> str: ...

    @property
    def restarts(self) -> int: ...

    async def run(self) -> None:
        """Run the program until the task is cancelled. Raises UserError if it does not start."""
        ...

    async def load(self) -> str:
        """For people. Example: "3 of 8 slots in use"."""
        ...


class Service:
    """Made by Ray on a node. `address`: that of the node; "" means the one that Ray knows."""

    def __init__(self, order: Mapping[str, Any], address: str = "") -> None:
        self._order, self._address = Order(**order), address or _node_address()
        if self._order.version != __version__:
            raise UserError(
                f"{self._address}: has arpo {__version__}, the driver has {self._order.version}: install the "
                "same version on all nodes"
            )
        with suppress(OSError):  # relative paths of the recipe, if this node has the folder
            os.chdir(self._order.folder)
        self._incarnation = uuid.uuid4().hex
        self._program: Program | None = None
        self._task: asyncio.Task[None] | None = None
        self._fault = ""
        self._earlier = 0  # restarts of earlier incarnations

    async def check(self, token: str, earlier: int) -> dict[str, Any]:
        """Start the program at the first call. Returns a `Report`. `earlier`: restarts before this one."""
        self._earlier = earlier
        if self._task is None:
            config = load_config(None, self._order.settings)
            make = ServerProgram if self._order.kind == "server" else HostProgram
            self._program = make(config, self._address, token, Path(self._order.logs))
            self._task = asyncio.create_task(self._keep(self._program))
        return asdict(self._report())

    async def status(self) -> dict[str, Any]:
        """For `arpo cluster status`: role, node, state, load, restarts."""
        report = self._report()
        load = await self._program.load() if self._program is not None and report.url else ""
        state = "running" if report.url else "failing" if report.fault else "starting"
        return {
            "role": self._order.name,
            "node": self._address,
            "state": state if load or not report.url else "silent",
            "load": load,
            "restarts": self._earlier + report.restarts,
        }

    def _report(self) -> Report:
        program = self._program
        url = program.url if program is not None else ""
        return Report(
            incarnation=self._incarnation,
            node=self._address,
            url=url,
            restarts=program.restarts if program is not None else 0,
            fault="" if url else self._fault,
        )

    async def _keep(self, program: Program) -> None:
        """Run the program again and again. A node may lack a package or disk space for a while only."""
        pause = RESTART_SECONDS
        while True:
            began = time.monotonic()
            try:
                await program.run()
            except (UserError, OSError) as error:
                self._fault = printable(str(error))[:_MAX_FAULT]
            if time.monotonic() - began > _LONGEST_PAUSE:  # it has worked for a while
                pause = RESTART_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


class ServerProgram:
    """One vLLM server. GPU: the one that Ray has reserved."""

    def __init__(self, config: Config, address: str, token: str, logs: Path) -> None:
        self._config, self._address, self._token, self._logs = config, address, token, logs
        self._server: Server | None = None

    @property
    def url(self) -> str:
        return self._server.place.url if self._server is not None else ""

    @property
    def restarts(self) -> int:
        return self._server.restarts if self._server is not None else 0

    async def run(self) -> None:
        self._server = None
        program = await asyncio.to_thread(find_server, self._config)
        servers = OwnServers(
            program=program,
            gpus=("" if program.on_cpu else os.environ.get("CUDA_VISIBLE_DEVICES", ""),),
            host=self._address,
            port=free_port(self._address),
            key=self._token,
            start_seconds=self._config.engine.start_seconds,
            load_seconds=self._config.engine.load_seconds,
            skip_used=True,
        )
        async with servers.running(self._logs, lambda text: None) as [self._server]:
            await asyncio.Event().wait()

    async def load(self) -> str:
        assert self._server is not None
        async with aiohttp.ClientSession(headers=key_headers(self._token)) as session:
            [load] = await read_loads(session, [self._server])
        if load is None:
            return ""
        return f"{load.running} running, {load.waiting} waiting, cache {load.cache:.0%}"


class HostProgram:
    """One environment host (`arpo env-host`) with the slots of env.parallel."""

    def __init__(self, config: Config, address: str, token: str, logs: Path) -> None:
        self._config, self._address, self._token = config, address, token
        self.url, self.restarts = "", 0

    async def run(self) -> None:
        async with self._started() as child:
            failed_checks = 0
            while failed_checks < _FAILED_CHECKS:
                self.url = await self._address_of(child)
                await asyncio.sleep(_CHECK_SECONDS)
                failed_checks = 0 if await self.load() else failed_checks + 1
        self.restarts += 1

    async def load(self) -> str:
        timeout = aiohttp.ClientTimeout(total=_CHECK_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(headers=key_headers(self._token), timeout=timeout) as session,
                session.get(f"{self.url}/health", allow_redirects=False) as answer,
            ):
                health = wire.health_from_json(wire.read_json(await answer.read(), "start"), "start")
        except (aiohttp.ClientError, TimeoutError, OSError, wire.BadRequest):
            return ""
        return f"{health.slots - health.free} of {health.slots} slots in use"

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[ChildHost]:
        child = await asyncio.to_thread(ChildHost, self._config, self._address, self._token)
        try:
            await asyncio.to_thread(child.wait, self._config.env.start_seconds)
            yield child
        finally:
            self.url = ""
            await asyncio.to_thread(child.close)

    async def _address_of(self, child: ChildHost) -> str:
        """The URL of the host. A dead host is restarted, which takes some seconds.

        Raises UserError with the end of its log if it dies at several starts in a row.
        """
        died = False
        while True:
            try:
                url = child.address()
            except HostLost as lost:
                if child.failed_starts >= _FAILED_STARTS:
                    raise UserError(lost.message) from lost
                self.url = ""
                self.restarts += not died
                died = True
                await asyncio.sleep(_POLL_SECONDS)
            else:
                return url


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def free_port(address: str) -> int:
    """A port that is free now. Services of one machine must not all try the same ones."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        return int(listener.getsockname()[1])
