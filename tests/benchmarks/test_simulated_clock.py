"""The event loop of the simulation: time jumps to the next timer."""

from __future__ import annotations

import asyncio
import time

import pytest
from simulation.clock import Clock, Meter, run_simulated


def test_a_day_passes_at_once_and_timers_fire_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []

        async def sleep(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            fired.append((name, asyncio.get_running_loop().time()))

        await asyncio.gather(sleep("day", 86_400), sleep("second", 1), sleep("hour", 3600))
        return fired

    began = time.monotonic()
    assert run_simulated(main()) == [("second", 1.0), ("hour", 3600.0), ("day", 86_400.0)]
    assert time.monotonic() - began < 3600


def test_a_timeout_is_one_of_simulated_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(600)
        return asyncio.get_running_loop().time()

    assert run_simulated(main()) == 60.0


def test_a_wait_without_a_timer_is_reported() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="everything waits, and no timer is set"):
        run_simulated(main())


def test_a_clock_of_speed_60_passes_an_hour_in_a_minute() -> None:
    async def main() -> tuple[float, float]:
        clock = Clock(speed=60)
        clock.start()
        began = clock.now()
        await clock.sleep(3600)
        return clock.now() - began, asyncio.get_running_loop().time()

    assert run_simulated(main()) == (3600.0, 60.0)


def test_a_meter_integrates_a_count_over_time() -> None:
    async def main() -> float:
        clock = Clock()
        clock.start()
        meter = Meter(clock)
        meter.add(3)
        await clock.sleep(10)  # 30
        with meter:
            await clock.sleep(5)  # 20
        meter.add(-3)
        await clock.sleep(100)
        return meter.total

    assert run_simulated(main()) == 50.0
