"""The services of a run on a Ray cluster, as seen by the driver: environment hosts and vLLM servers.

    cluster = open_cluster(config)   # None without cluster.ray
    cluster.open_hosts()             # an EnvSource, as that of env.hosts
    cluster.servers                  # of engine.replicas, as those of one machine

Engine and pool reach servers and hosts over HTTP, with a token of the run. A thread asks every service for
its state, about once a second. If a service is lost with its node, Ray starts it elsewhere; its address then
changes, and `address` returns the new one. All end with `close`, with garbage collection, or with the driver.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from arpo.cluster.nodes import (
    NAMESPACE,
    Role,
    connect,
    free,
    has_gpus,
    host_role,
    living_nodes,
    options_in,
    replica_role,
    reserve,
    slots_of_hosts,
)
from arpo.cluster.service import Kind, Order, Report, Service
from arpo.config import Config
from arpo.engines.http_exchange import TransientError
from arpo.envs.remote import HostLost, Hosts, RemoteHost
from arpo.errors import UserError, printable
from arpo.serving.servers import START_ATTEMPTS, START_SECONDS

_ACTOR_SECONDS = 60.0  # for Ray to start the process of an actor
_SERVER_SECONDS = START_ATTEMPTS * START_SECONDS + _ACTOR_SECONDS  # Ray's part, and all attempts
_POLL_SECONDS = 1.0
_FAILED_STARTS_SHOWN = 300  # characters of a fault
# At the end of an actor, Ray kills its child processes, but not theirs. Guards and hosts end all of them
# (processes/guard.py), unless Ray kills them first.
_LEAVE_PROGRAMS = {"RAY_kill_child_processes_on_worker_exit": "false"}


def open_cluster(config: Config) -> Cluster | None:
    """Connect to the cluster of the recipe; None if it has none. Raises UserError if that fails."""
    if not config.cluster.ray:
        return None
    connect(config.cluster.ray)
    return Cluster(config)


class Cluster:
    """A connected cluster. `notes.report` receives messages for the user.

    `run` is the first part of the names of all actors. `token` protects servers and hosts.
    """

    def __init__(self, config: Config) -> None:
        self.notes = Notes()
        self.run = f"{Path(config.run.dir).name}-{secrets.token_hex(3)}"
        self.token = secrets.token_urlsafe(24)  # passed in calls only: never stored or logged
        self.hosts: Services | None = None
        starts_servers = config.engine.name == "vllm" and config.engine.replicas > 0
        self.servers = ClusterServers(self) if starts_servers else None
        self._config = config

    def open_hosts(self) -> Hosts:
        """Start the hosts of cluster.hosts and wait until they listen. Raises UserError if one does not."""
        config, role = _of_service(self._config), host_role(self._config.cluster)
        shares = slots_of_hosts(config.env.parallel, role.count)
        configs = [replace(config, env=replace(config.env, parallel=slots)) for slots in shares]
        self.hosts = self.start(role, configs, "host", Path())
        self.hosts.wait(config.env.start_seconds + _ACTOR_SECONDS)
        hosts = [RemoteHost(one.name, one.address, self.token) for one in self.hosts]
        return Hosts(hosts, config.env, self.hosts.close)

    def start_servers(self, logs: Path) -> Services:
        config = self._config
        role = replica_role(config.cluster, config.engine, on_gpus=has_gpus(living_nodes()))
        return self.start(role, [_of_service(config)] * role.count, "server", logs)

    def start(self, role: Role, configs: Sequence[Config], kind: Kind, logs: Path) -> Services:
        orders = [
            Order.of(config, kind, f"{role.name} {number}", logs) for number, config in enumerate(configs)
        ]
        return Services(role, orders, self.token, self.run, self._config.cluster.wait_seconds, self.notes)


class ClusterServers:
    """The vLLM servers of engine.replicas, placed by Ray. None shares a GPU with a learner."""

    share_gpu = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.key = cluster, cluster.token

    @asynccontextmanager
    async def running(
        self, log_dir: Path | None, report: Callable[[str], None]
    ) -> AsyncIterator[list[PlacedService]]:
        """Run the servers during the block. It begins when all are healthy. None: logs in a new folder."""
        logs = log_dir or Path(tempfile.gettempdir()) / f"arpo-servers-{secrets.token_hex(4)}"
        report(f"starting vLLM servers on the Ray cluster: a minute or more; logs on their nodes: {logs}")
        services = await asyncio.to_thread(self._cluster.start_servers, logs)
        try:
            await asyncio.to_thread(services.wait, _SERVER_SECONDS)
            yield list(services)
        finally:
            await asyncio.to_thread(services.close)


def _of_service(config: Config) -> Config:
    """The recipe of a service: it is not part of a cluster itself."""
    return replace(config, cluster=replace(config.cluster, ray="", hosts=0))


class Notes:
    """The receiver of messages for the user. It may change during the run."""

    report: Callable[[str], None] = staticmethod(lambda text: None)


class PlacedService:
    """One service. `restarts` counts those of its program and of its actor.

    `lost` makes the exception of `address` while the service has none.
    """

    def __init__(self, name: str, actor: Any, notes: Notes, lost: Callable[[str], Exception]) -> None:
        self.name, self.actor, self._notes, self._lost = name, actor, notes, lost
        self.fault = ""  # why its last start failed, or why it does not answer
        self.is_dead = False  # Ray does not start it again
        self._worked = False  # it had an address since the last report of a fault
        self.earlier = 0  # restarts of lost incarnations, themselves included
        self._report: Report | None = None

    @property
    def restarts(self) -> int:
        return self.earlier + (self._report.restarts if self._report is not None else 0)

    @property
    def has_failed(self) -> bool:
        return self.is_dead or (self._report is not None and bool(self._report.fault))

    @property
    def url(self) -> str:
        """ "" while the service is starting."""
        return self._report.url if self._report is not None else ""

    def address(self) -> str:
        if not self.url:
            raise self._lost(f"{self.name} is starting{f': {self.fault}' if self.fault else ''}")
        return self.url

    def update(self, report: Report) -> None:
        """A new state. Tells the user if Ray has started the service again, or if it no longer starts."""
        before = self._report
        if before is not None and before.incarnation != report.incarnation:
            self.earlier += before.restarts + 1
            self._notes.report(f"{self.name} was lost on {before.node} and starts again on {report.node}")
        self._report, self.fault = report, report.fault
        if self._worked and report.fault:
            self._notes.report(f"{self.name} does not start again on {report.node}: {report.fault}")
        self._worked = bool(report.url) or (self._worked and not report.fault)

    def lost(self, fault: str, *, is_dead: bool) -> None:
        """No answer. The last address stays: its callers find out themselves whether it works."""
        self.fault, self.is_dead = fault, is_dead


class Services:
    """All services of one role. `orders`: one per process of the role.

    Raises UserError if the cluster has no place for them within `wait_seconds`.
    """

    def __init__(
        self,
        role: Role,
        orders: Sequence[Order],
        token: str,
        run: str,
        wait_seconds: float,
        notes: Notes,
    ) -> None:
        group = reserve(role, wait_seconds)
        self._placed = [
            PlacedService(
                order.name,
                _start(role, order, group, index, f"{run}/{order.name}"),
                notes,
                TransientError if order.kind == "server" else partial(HostLost, "start"),
            )
            for index, order in enumerate(orders)
        ]
        ended = threading.Event()
        poll = threading.Thread(target=_poll, args=(self._placed, token, ended), daemon=True)
        self.close = weakref.finalize(self, _close, group, self._placed, ended, poll)
        poll.start()

    def __iter__(self) -> Iterator[PlacedService]:
        return iter(self._placed)

    def wait(self, seconds: float) -> None:
        """Wait until all services have an address. Raises UserError if one fails, or after `seconds`."""
        end = time.monotonic() + seconds
        for placed in self._placed:
            while not placed.url:
                if placed.has_failed or time.monotonic() > end:
                    self.close()
                    reason = placed.fault or f"no answer within {seconds:g} s"
                    raise UserError(f"{placed.name} did not start on the Ray cluster: {reason}")
                time.sleep(_POLL_SECONDS / 10)


def _start(role: Role, order: Order, group: Any, index: int, name: str) -> Any:
    import ray

    options = {
        **options_in(role, group, index),
        "name": name,
        "namespace": NAMESPACE,
        "max_restarts": -1,
        "max_concurrency": 16,
        "runtime_env": {"env_vars": _LEAVE_PROGRAMS},
    }
    return ray.remote(Service).options(**options).remote(asdict(order))


def _poll(placed: Sequence[PlacedService], token: str, ended: threading.Event) -> None:
    """Ask all services for their state until `ended`, or until this process leaves the cluster.

    A service has at most one open question.
    """
    import ray
    from ray.exceptions import ActorDiedError, RayError

    asked: dict[Any, PlacedService] = {}
    while not ended.is_set() and ray.is_initialized():
        busy = set(map(id, asked.values()))
        for one in placed:
            if id(one) not in busy and not one.is_dead:
                asked[one.actor.check.remote(token, one.earlier)] = one
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_POLL_SECONDS)
        for answer in answered:
            one = asked.pop(answer)
            try:
                one.update(Report(**ray.get(answer)))
            except RayError as error:
                one.lost(_reason(error), is_dead=isinstance(error, ActorDiedError))
        ended.wait(_POLL_SECONDS)


def _reason(error: Exception) -> str:
    """The last line of the error: that of the cause, on the other node."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return printable(lines[-1] if lines else type(error).__name__)[:_FAILED_STARTS_SHOWN]


def _close(
    group: Any, placed: Sequence[PlacedService], ended: threading.Event, poll: threading.Thread
) -> None:
    """End all services. Their programs end with the processes of the actors."""
    import ray

    ended.set()
    if not ray.is_initialized():
        return
    if poll is not threading.current_thread():
        poll.join()
    for one in placed:
        with suppress(Exception):  # the cluster may be gone
            ray.kill(one.actor)
    free(group)
