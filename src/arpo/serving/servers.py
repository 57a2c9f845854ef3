"""The vLLM servers of one command: of `arpo serve`, or of a run with engine.replicas.

    servers = open_servers(config, learning=True)  # checks the settings, starts nothing
    async with servers.running(log_dir, report) as started:
        …  # all servers are healthy; one that dies or hangs is restarted

A restart takes about a minute, and the server then has the weights of its model folder: the engine loads the
newest weights into it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from arpo.config import Config
from arpo.engines.vllm_access import KEY_VARIABLE, key_headers, read_key
from arpo.engines.vllm_client import LOAD_SECONDS
from arpo.errors import UserError
from arpo.processes.child import Child
from arpo.processes.environment import MIN_SECRET_LENGTH, is_loopback
from arpo.processes.supervisor import Supervised, Supervision, responds, wait_until_ready
from arpo.serving.placement import Placement, place_on_cpu, place_on_gpus
from arpo.serving.vllm_server import VllmServer, find_server, find_vllm, link_package

LOOPBACK = "127.0.0.1"
START_ATTEMPTS = 3
START_SECONDS = 900.0  # timeout of one start of a server
GRACE_SECONDS = 10.0  # for a clean exit of a server
LAST_PORT = 65_535
CHECK_SECONDS = 30.0
# A library is missing or does not fit, or this vLLM does not know an option.
MISSING = r"(ModuleNotFoundError|ImportError): |\S+: error: (unrecognized|argument)"
IN_USE = os.strerror(errno.EADDRINUSE)
ENGINE_ROUTE = "/is_paused"  # asks the engine process; /health does not, so it would not find one that hangs


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Address and GPUs of one server. `gpu` is as in CUDA_VISIBLE_DEVICES; "" on a CPU."""

    host: str
    port: int
    gpu: str = ""

    @property
    def url(self) -> str:
        """The URL for callers on this machine. Example: "http://127.0.0.1:9000"."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(slots=True, kw_only=True)
class ServerProgram:
    """A server on its place. `key` protects it; "" for none.

    `moves`: if its port is in use at a start, it takes the next free one. Another program may have taken the
    port while the server was down.
    """

    model: VllmServer
    place: Place
    log_dir: Path
    key: str
    moves: bool = False
    check_seconds: float = CHECK_SECONDS
    grace_seconds: float = GRACE_SECONDS

    @property
    def name(self) -> str:
        return self.place.url

    def start(self) -> Child:
        if problem := _port_problem(self.place.host, self.place.port):
            if problem != IN_USE or not self.moves:
                raise UserError(problem)
            [self.place] = choose_places(self.place.host, self.place.port, [self.place.gpu], skip_used=True)
        return Child(
            self.model.command(self.place.host, self.place.port),
            env=self.model.environment(link_package(self.log_dir), self.place.gpu, self.key),
            log=self.log_dir / f"server-{self.place.port}.log",
            guarded=True,
            grace_seconds=self.grace_seconds,
        )

    def is_ready(self) -> bool:
        return self._answers("/health")

    def is_healthy(self) -> bool:
        return self._answers(ENGINE_ROUTE)

    def _answers(self, route: str) -> bool:
        return responds(f"{self.place.url}{route}", key_headers(self.key), self.check_seconds)


class Server(Supervised):
    """A started server."""

    def __init__(self, program: ServerProgram, watch: Supervision, report: Callable[[str], None]) -> None:
        self._own = program
        super().__init__(program, watch, report)

    @property
    def place(self) -> Place:
        return self._own.place

    def address(self) -> str:
        return self.place.url


# A server is silent while it loads weights: so it has more checks than that takes.
SERVER_WATCH = Supervision(
    start_seconds=START_SECONDS,
    attempts=START_ATTEMPTS,
    hopeless=MISSING,
    check_seconds=CHECK_SECONDS,
    failed_checks=1 + ceil(LOAD_SECONDS / CHECK_SECONDS),
    poll_seconds=0.5,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServers:
    """Servers to start, one per entry of `gpus`. `key` protects them; "" for none.

    `share_gpu`: the servers sleep while a learner learns on the same GPUs. `skip_used`: a port in use is
    skipped instead of refused, also at a restart.
    """

    model: VllmServer
    gpus: tuple[str, ...]
    host: str
    port: int
    key: str
    watch: Supervision
    skip_used: bool = False
    share_gpu: bool = False

    @asynccontextmanager
    async def running(
        self, log_dir: Path | None, report: Callable[[str], None]
    ) -> AsyncIterator[list[Server]]:
        """Run the servers during the block. It begins when all are healthy. None: logs go to a new folder.

        This folder is removed at the end, unless the block raises an exception.
        """
        places = choose_places(self.host, self.port, self.gpus, skip_used=self.skip_used)
        folder = log_dir or Path(tempfile.mkdtemp(prefix="arpo-servers-"))
        programs = [
            ServerProgram(model=self.model, place=at, log_dir=folder, key=self.key, moves=self.skip_used)
            for at in places
        ]
        ports = ", ".join(str(at.port) for at in places)
        report(f"starting vLLM servers at ports {ports}: a minute or more; logs: {folder}")
        async with supervised(programs, self.watch, report) as servers:
            yield servers
        if log_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def supervised(
    programs: Sequence[ServerProgram], watch: Supervision, report: Callable[[str], None]
) -> AsyncIterator[list[Server]]:
    """Run servers during the block. It begins when all are healthy.

    Raises UserError with the end of a log if a server dies at each of its first starts.
    """
    servers = [Server(program, watch, report) for program in programs]
    try:
        await asyncio.to_thread(wait_until_ready, servers)
        yield servers
    finally:
        await asyncio.gather(*(asyncio.to_thread(server.close) for server in servers))


def open_servers(config: Config, *, learning: bool) -> OwnServers | None:
    """The servers of a run with engine.replicas; None if it starts none. Nothing is started yet.

    A random key keeps other users of this machine out.
    """
    if config.engine.name != "vllm" or not config.engine.replicas:
        return None
    placement, model = _plan(config, learning=learning)
    return OwnServers(
        model=replace(model, requests=config.env.parallel),
        gpus=placement.gpus,
        host=LOOPBACK,
        port=config.engine.port,
        key=read_key() or secrets.token_urlsafe(24),
        watch=SERVER_WATCH,
        skip_used=True,
        share_gpu=model.sleeps,
    )


def open_served(config: Config, host: str) -> OwnServers:
    """The servers of `arpo serve`. Raises UserError for an address beyond loopback without a key."""
    key = read_key()
    if not key and not is_loopback(host):
        raise UserError(
            f"--host {host}: is reachable from other machines, but there is no key: set {KEY_VARIABLE} for "
            f"the servers and for their callers to the same secret of at least {MIN_SECRET_LENGTH} "
            f"characters, or use {LOOPBACK}"
        )
    placement, model = _plan(config, learning=False)
    return OwnServers(
        model=model,
        gpus=placement.gpus,
        host=host,
        port=config.engine.port,
        key=key,
        watch=SERVER_WATCH,
    )


def _plan(config: Config, *, learning: bool) -> tuple[Placement, VllmServer]:
    replicas = config.engine.replicas
    _, on_cpu = find_vllm(config.engine)
    if on_cpu:
        return place_on_cpu(config.engine, replicas), find_server(config)
    import torch

    from arpo.serving.memory import memory_share, takes_turns

    placement = place_on_gpus(config, replicas, torch.cuda.device_count(), learning=learning)
    sleeps = placement.shared and takes_turns(config)
    return placement, find_server(config, share=memory_share(config, placement), sleeps=sleeps)


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


def free_port(address: str) -> int:
    """A port that is free now. Servers of several runs on one machine must not all try the same ones."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:
        return int(listener.getsockname()[1])


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
