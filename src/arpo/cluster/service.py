"""A service: one program on a node of the cluster, run and watched by a Ray actor.

`Service` is the class of the actor. It runs a vLLM server or an environment host in a process of its own,
and restarts it if it dies or hangs. Its processes end with the actor, however that ends. If the actor or its
node is lost, Ray makes a new one, perhaps on another node; it starts when the driver checks it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp

from arpo import __version__
from arpo.config import Config
from arpo.config.recipe import keys, load_config, value
from arpo.engines.vllm_access import key_headers
from arpo.envs import wire
from arpo.envs.child_host import CHECK_SECONDS, HostProgram, watch_of
from arpo.errors import UserError
from arpo.processes.child import Child
from arpo.processes.supervisor import Supervised
from arpo.serving.load import read_load
from arpo.serving.servers import SERVER_WATCH, Place, ServerProgram, free_port
from arpo.serving.vllm_server import find_server

Kind = Literal["server", "host"]
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
        self._program: NodeServer | NodeHost | None = None
        self._watch: Supervised | None = None
        self._earlier = 0  # restarts of earlier incarnations

    async def check(self, token: str, earlier: int) -> dict[str, Any]:
        """Start the program at the first call. Returns a `Report`. `earlier`: restarts before this one."""
        self._earlier = earlier
        if self._watch is None:
            config, is_server = load_config(None, self._order.settings), self._order.kind == "server"
            make = NodeServer if is_server else NodeHost
            self._program = make(config, self._address, token, Path(self._order.logs))
            watch = SERVER_WATCH if is_server else watch_of(config.env)
            self._watch = Supervised(self._program, watch)
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

    def close(self) -> None:
        """End the program. The end of the actor's process does the same."""
        if self._watch is not None:
            self._watch.close()

    def _report(self) -> Report:
        watch, url = self._watch, ""
        if watch is not None and self._program is not None and watch.state == "healthy":
            url = self._program.url
        return Report(
            incarnation=self._incarnation,
            node=self._address,
            url=url,
            restarts=0 if watch is None else watch.restarts,
            fault="" if watch is None else watch.fault[:_MAX_FAULT],
        )


class NodeServer:
    """One vLLM server, on a free port of the node. GPU: the one that Ray has reserved."""

    name = "the vLLM server"

    def __init__(self, config: Config, address: str, token: str, logs: Path) -> None:
        self._config, self._address, self._token, self._logs = config, address, token, logs

    @property
    def url(self) -> str:
        return self._program.place.url

    def start(self) -> Child:
        model = find_server(self._config)  # the node may lack vLLM or disk space for a while only
        gpu = "" if model.on_cpu else os.environ.get("CUDA_VISIBLE_DEVICES", "")
        place = Place(host=self._address, port=free_port(self._address), gpu=gpu)
        self._program = ServerProgram(model=model, place=place, log_dir=self._logs, key=self._token)
        return self._program.start()

    def is_ready(self) -> bool:
        return self._program.is_ready()

    def is_healthy(self) -> bool:
        return self._program.is_healthy()

    async def load(self) -> str:
        """For people. "" if it does not answer."""
        async with aiohttp.ClientSession(headers=key_headers(self._token)) as session:
            load = await read_load(session, self.url)
        return f"{load.running} running, {load.waiting} waiting, cache {load.cache:.0%}" if load else ""


class NodeHost(HostProgram):
    """One environment host with the slots of env.parallel."""

    def __init__(self, config: Config, address: str, token: str, logs: Path) -> None:
        super().__init__(config, address, token)
        self._token = token

    async def load(self) -> str:
        """Example: "3 of 8 slots in use". "" if it does not answer."""
        timeout = aiohttp.ClientTimeout(total=CHECK_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(headers=key_headers(self._token), timeout=timeout) as session,
                session.get(f"{self.url}/health", allow_redirects=False) as answer,
            ):
                health = wire.health_from_json(wire.read_json(await answer.read(), "start"), "start")
        except (aiohttp.ClientError, TimeoutError, OSError, wire.BadRequest):
            return ""
        return f"{health.slots - health.free} of {health.slots} slots in use"


def _node_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
