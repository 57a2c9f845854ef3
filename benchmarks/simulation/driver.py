"""The cost of the driver: CPU time and memory per episode, and how long its event loop is blocked.

Prompts have real sizes: screenshots of 1920x1080 (the same one every time), answers of 150 tokens. The work
of the simulated servers is not counted.
"""

from __future__ import annotations

import asyncio
import resource
import selectors
import time
from dataclasses import dataclass

from simulation.clock import JumpingSelector
from simulation.cluster import Cluster, Result, run_real, simulate
from simulation.roles import SimulatedHttp

BEAT = 0.01  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCost:
    """Seconds. `blocks` are the CPU times between two waits of the event loop, in ascending order."""

    result: Result
    cpu: float  # per episode
    blocks: list[float]
    memory: float  # GiB, the largest resident size of the process so far


class _Watch(JumpingSelector):
    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[float] = []
        self._began = _own_cpu()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.blocks.append(_own_cpu() - self._began)
        try:
            return super().select(timeout)
        finally:
            self._began = _own_cpu()


def _own_cpu() -> float:
    return time.thread_time() - SimulatedHttp.cpu


def measure_cost(cluster: Cluster) -> DriverCost:
    """With the simulated clock."""
    watch, began = _Watch(), _own_cpu()
    result = simulate(cluster, watch)
    return DriverCost(
        result=result,
        cpu=(_own_cpu() - began) / result.all_episodes,
        blocks=sorted(watch.blocks),
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )


def measure_lag(cluster: Cluster, speed: float) -> list[float]:
    """Seconds by which timers come late, in ascending order. With the real clock."""
    lags: list[float] = []

    async def beat() -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT
            await asyncio.sleep(BEAT)
            lags.append(max(0.0, loop.time() - due))

    run_real(cluster, speed, beside=beat)
    return sorted(lags)
