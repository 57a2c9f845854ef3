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
from pathlib import Path

from arpo.config import Config
from arpo.engines.vllm_access import KEY_VARIABLE, read_key
from arpo.errors import UserError
from arpo.process_environment import MIN_SECRET_LENGTH, is_loopback
from arpo.serving.placement import Placement, place_on_cpu, place_on_gpus
from arpo.serving.supervisor import Place, Program, Server, Supervision, choose_places, supervised
from arpo.serving.vllm_server import find_server, find_vllm

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServers:
    """Servers to start. `key` protects them; "" for none. `share_gpu`: they sleep while a learner learns."""

    program: Program
    places: tuple[Place, ...]
    key: str
    share_gpu: bool
    start_seconds: float

    @property
    def urls(self) -> list[str]:
        return [place.url for place in self.places]

    @asynccontextmanager
    async def running(
        self, log_dir: Path | None, report: Callable[[str], None]
    ) -> AsyncIterator[list[Server]]:
        """Run the servers during the block. It begins when all are healthy. None: logs go to a new folder.

        This folder is removed at the end, unless the block raises an exception.
        """
        folder = log_dir or Path(tempfile.mkdtemp(prefix="arpo-servers-"))
        settings = Supervision(log_dir=folder, key=self.key, start_seconds=self.start_seconds, report=report)
        async with supervised(self.program, self.places, settings) as servers:
            yield servers
        if log_dir is None:
            shutil.rmtree(folder, ignore_errors=True)


def open_servers(config: Config, *, learning: bool) -> OwnServers:
    """The servers of a run with engine.replicas. A random key keeps other users of this machine out."""
    placement, program = _plan(config, config.engine.replicas, learning=learning)
    return OwnServers(
        program=program,
        places=tuple(choose_places(LOOPBACK, config.engine.port, placement.gpus, skip_used=True)),
        key=read_key() or secrets.token_urlsafe(24),
        share_gpu=placement.shared,
        start_seconds=config.engine.start_seconds,
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
    placement, program = _plan(config, config.engine.replicas, learning=False)
    return OwnServers(
        program=program,
        places=tuple(choose_places(host, config.engine.port, placement.gpus, skip_used=False)),
        key=key,
        share_gpu=False,
        start_seconds=config.engine.start_seconds,
    )


def _plan(config: Config, replicas: int, *, learning: bool) -> tuple[Placement, Program]:
    _, on_cpu = find_vllm(config)
    if on_cpu:
        return place_on_cpu(config, replicas), find_server(config)
    import torch

    from arpo.serving.memory import memory_share

    placement = place_on_gpus(config, replicas, torch.cuda.device_count(), learning=learning)
    share = memory_share(config) if placement.shared else 0.0
    return placement, find_server(config, share=share, sleeps=placement.shared)
