"""Simulated hours of asynchronous training in which environments break, and servers and the trainer die.

A killed server loses its requests and its weights, and is back after RESTART seconds. A killed trainer is
cancelled without a checkpoint; a new one resumes from the newest, with new servers. Both are killed in the
simulated time. At the end the run is interrupted, as by Ctrl-C.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from unittest import mock

from arpo.config import Config
from arpo.envs.base import Env
from arpo.reporting.display import Display
from arpo.storage.run_folder import RunFolder
from arpo.training.garbage import rare_collections
from arpo.training.trainer import Trainer
from simulation.clock import Clock, run_simulated
from simulation.cluster import Cluster, Parts, settings
from simulation.replica import Server
from simulation.waiting_learner import work_in_loop

RESTART = 30.0
Wrap = Callable[[Env], Env]


def simulate_lives(
    cluster: Cluster, folder: Path, wrap: Wrap, *, end: float, server: float, trainer: float
) -> Counter[str]:
    """Train in folder/run until `end`. Returns the numbers of kills.

    A server is killed every `server` seconds, the trainer every `trainer` seconds. `wrap` makes environments
    faulty.
    """
    config = settings(cluster, folder, 1.0)
    (folder / "weights").mkdir()
    kills: Counter[str] = Counter()

    async def all_lives() -> None:
        clock = Clock()
        clock.start()
        while (left := end - clock.now()) > 0:
            parts = Parts(cluster, config, clock, folder / "weights")
            parts.factory = partial(_wrapped, parts.envs, wrap)
            killing = asyncio.create_task(_kill_servers(parts.servers, clock, server, kills))
            with parts.opened(cluster.shared), closing(RunFolder(folder / "run")) as store:
                await _one_life(config, store, min(left, trainer), last=left <= trainer)
            killing.cancel()
            kills["trainer"] += left > trainer

    with mock.patch("arpo.training.run.Run.work", work_in_loop), rare_collections():
        run_simulated(all_lives())
    return kills


def _wrapped(envs: Callable[[], Env], wrap: Wrap) -> Env:
    return wrap(envs())


async def _one_life(config: Config, store: RunFolder, seconds: float, *, last: bool) -> None:
    trainer = Trainer(config, store, Display())
    with closing(trainer.run):
        training = asyncio.create_task(trainer.train())
        await asyncio.wait([training], timeout=seconds)
        if training.done():
            raise AssertionError(f"the trainer ended: {training.result()}")
        if last:
            trainer.run.stop()
        else:
            training.cancel()
        await asyncio.wait([training])
        if last:
            training.result()


async def _kill_servers(servers: list[Server], clock: Clock, every: float, kills: Counter[str]) -> None:
    """One after the other."""
    while True:
        await clock.sleep(every)
        servers[kills["server"] % len(servers)].kill(RESTART)
        kills["server"] += 1
