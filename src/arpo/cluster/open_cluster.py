"""Opens the cluster of a recipe (`cluster.ray`): its environment hosts and its vLLM servers.

    cluster = open_cluster(config)   # None without cluster.ray
    cluster.open_hosts()             # an EnvSource, as that of env.hosts
    cluster.servers                  # of engine.replicas, as those of one machine

Engine and pool reach servers and hosts over HTTP, with a token of the run. They ask for the current address
of each one, so it may move to another node.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from arpo.cluster.connection import connect, living_nodes, new_token
from arpo.cluster.placement import Role, has_gpus, host_role, replica_role, slots_of_hosts
from arpo.cluster.service import Kind, Order
from arpo.cluster.services import Lost, Notes, PlacedService, Services
from arpo.config import Config
from arpo.engines.http_exchange import TransientError
from arpo.envs.remote import HostLost, Hosts, RemoteHost
from arpo.serving.servers import START_ATTEMPTS

_ACTOR_SECONDS = 60.0  # for Ray to start the process of an actor


def open_cluster(config: Config) -> Cluster | None:
    """Connect to the cluster of the recipe; None if it has none. Raises UserError if that fails."""
    if not config.cluster.ray:
        return None
    connect(config.cluster.ray)
    return Cluster(config)


def uses_servers(config: Config) -> bool:
    return config.engine.name == "vllm" and config.engine.replicas > 0


class Cluster:
    """A connected cluster. `notes.report` receives messages for the user.

    `run` is the first part of the names of all actors. `token` protects servers and hosts.
    """

    def __init__(self, config: Config) -> None:
        self.notes = Notes()
        self.run = f"{Path(config.run.dir).name}-{secrets.token_hex(3)}"
        self.token = new_token()
        self.hosts: Services | None = None
        self.servers = ClusterServers(self) if uses_servers(config) else None
        self._config = config

    def open_hosts(self) -> Hosts:
        """Start the hosts of cluster.hosts and wait until they listen. Raises UserError if one does not."""
        config, role = self._config, host_role(self._config)
        shares = slots_of_hosts(config.env.parallel, role.count)
        configs = [replace(config, env=replace(config.env, parallel=slots)) for slots in shares]
        self.hosts = self.start(role, configs, "host", Path())
        self.hosts.wait(config.env.start_seconds + _ACTOR_SECONDS)
        return Hosts([_remote_host(one, self.token) for one in self.hosts], config.env, self.hosts.close)

    def start_servers(self, logs: Path) -> Services:
        config = self._config
        role = replica_role(config, on_gpus=has_gpus(living_nodes()))
        return self.start(role, [config] * role.count, "server", logs)

    def start(self, role: Role, configs: Sequence[Config], kind: Kind, logs: Path) -> Services:
        orders = [
            Order.of(_of_service(config), kind, f"{role.name} {number}", logs)
            for number, config in enumerate(configs)
        ]
        return Services(role, orders, self.token, self.run, self._config.cluster.wait_seconds, self.notes)

    @property
    def server_seconds(self) -> float:
        """Timeout for starting the servers: Ray's part, and all attempts of a supervisor."""
        return START_ATTEMPTS * self._config.engine.start_seconds + _ACTOR_SECONDS


class ClusterServers:
    """The vLLM servers of engine.replicas, placed by Ray. None shares a GPU with a learner."""

    share_gpu = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.key = cluster, cluster.token

    @asynccontextmanager
    async def running(
        self, log_dir: Path | None, report: Callable[[str], None]
    ) -> AsyncIterator[list[PlacedServer]]:
        """Run the servers during the block. It begins when all are healthy. None: logs in a new folder."""
        logs = log_dir or Path(tempfile.gettempdir()) / f"arpo-servers-{secrets.token_hex(4)}"
        report(f"starting vLLM servers on the Ray cluster: a minute or more; logs on their nodes: {logs}")
        services = await asyncio.to_thread(self._cluster.start_servers, logs)
        try:
            await asyncio.to_thread(services.wait, self._cluster.server_seconds)
            yield [PlacedServer(one) for one in services]
        finally:
            await asyncio.to_thread(services.close)


class PlacedServer:
    """A vLLM server as the engine sees it."""

    def __init__(self, placed: PlacedService) -> None:
        self._placed = placed

    def address(self) -> str:
        """Raises TransientError while the server has no address."""
        try:
            return self._placed.address()
        except Lost as lost:
            raise TransientError(str(lost)) from None


def _remote_host(placed: PlacedService, token: str) -> RemoteHost:
    def address() -> str:
        try:
            return placed.address()
        except Lost as lost:
            raise HostLost("start", str(lost)) from None

    return RemoteHost(placed.name, address, token)


def _of_service(config: Config) -> Config:
    """The recipe of a service: it is not part of a cluster itself."""
    return replace(config, cluster=replace(config.cluster, ray="", hosts=0))
