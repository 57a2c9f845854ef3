"""The vLLM servers of one command: of `arpo serve`, or of a run with engine.replicas.

servers = open_servers(config, learning=True)  # checks the settings, starts nothing
async with servers.running(log_dir, report) as started:
    …
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from arpo.config import Config
from arpo.engines.vllm_access import KEY_VARIABLE, read_key
from arpo.errors import UserError
from arpo.processes.environment import MIN_SECRET_LENGTH, is_loopback
from arpo.serving.placement import Placement, place_on_cpu, place_on_gpus
from arpo.serving.supervisor import (
    CHECK_SECONDS,
    Program,
    Server,
    Supervision,
    choose_places,
    supervised,
)
from arpo.serving.vllm_server import find_server, find_vllm

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServers:
    """Servers to start, one per entry of `gpus`. `key` protects them; "" for none.

    `share_gpu`: a learner uses the same GPUs, and the servers sleep while it learns. `skip_used`: a port in
    use is skipped instead of refused.
    """

    program: Program
    gpus: tuple[str, ...]
    host: str
    port: int
    key: str
    start_seconds: float
    load_seconds: float
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
        settings = Supervision(
            log_dir=folder,
            key=self.key,
            start_seconds=self.start_seconds,
            failed_checks=1 + ceil(self.load_seconds / CHECK_SECONDS),  # silent while it loads weights
            report=report,
        )
        async with supervised(self.program, places, settings) as servers:
            yield servers
        if log_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


def open_servers(config: Config, *, learning: bool) -> OwnServers | None:
    """The servers of a run with engine.replicas; None if it starts none. Nothing is started yet.

    A random key keeps other users of this machine out.
    """
    if config.engine.name != "vllm" or not config.engine.replicas:
        return None
    placement, program = _plan(config, learning=learning)
    return OwnServers(
        program=program,
        gpus=placement.gpus,
        host=LOOPBACK,
        port=config.engine.port,
        key=read_key() or secrets.token_urlsafe(24),
        start_seconds=config.engine.start_seconds,
        load_seconds=config.engine.load_seconds,
        skip_used=True,
        share_gpu=placement.shared,
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
    placement, program = _plan(config, learning=False)
    return OwnServers(
        program=program,
        gpus=placement.gpus,
        host=host,
        port=config.engine.port,
        key=key,
        start_seconds=config.engine.start_seconds,
        load_seconds=config.engine.load_seconds,
    )


def _plan(config: Config, *, learning: bool) -> tuple[Placement, Program]:
    replicas = config.engine.replicas
    _, on_cpu = find_vllm(config)
    if on_cpu:
        return place_on_cpu(config, replicas), find_server(config)
    import torch

    from arpo.serving.memory import memory_share

    placement = place_on_gpus(config, replicas, torch.cuda.device_count(), learning=learning)
    share = memory_share(config) if placement.shared else 0.0
    return placement, find_server(config, share=share, sleeps=placement.shared)
