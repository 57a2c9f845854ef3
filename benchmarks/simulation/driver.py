"""The cost of the driver: CPU time, memory and lag of its event loop, with the real clock.

Prompts have real sizes: screenshots of 1920x1080 (one, which is the same every time), answers of 150 tokens.
"""

from __future__ import annotations

import asyncio
import resource
import time
from dataclasses import dataclass

from simulation.cluster import Cluster, Result, run_real

BEAT = 0.01  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverCost:
    result: Result
    cpu: float  # seconds per episode, without the simulated servers
    share: float  # of a core
    lag_median: float  # seconds
    lag_p99: float
    lag_max: float
    memory: float  # GiB, the largest resident size of the process


class Heart:
    """Measures how late the event loop calls a timer."""

    def __init__(self) -> None:
        self.lags: list[float] = []

    async def beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + BEAT
            await asyncio.sleep(BEAT)
            self.lags.append(max(0.0, loop.time() - due))


def measure_driver(cluster: Cluster, speed: float) -> DriverCost:
    heart, began, cpu = Heart(), time.monotonic(), time.process_time()
    result = run_real(cluster, speed, beside=heart.beat)
    passed, used = time.monotonic() - began, time.process_time() - cpu - result.servers_cpu
    lags = sorted(heart.lags)
    return DriverCost(
        result=result,
        cpu=used / result.all_episodes,
        share=used / passed,
        lag_median=lags[len(lags) // 2],
        lag_p99=lags[int(0.99 * len(lags))],
        lag_max=lags[-1],
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    )
