"""An asyncio event loop with a simulated clock, and a clock for both kinds of loop.

    run_simulated(main())  # returns at once, also if main() sleeps for a day

The loop runs everything that is ready. When it would wait for the next timer, the simulated time jumps to
that timer instead. Timeouts, sleeps and `loop.time()` follow the simulated time. Threads do not: a simulated
program uses none.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class JumpingSelector(selectors.DefaultSelector):
    """Counts the time that the loop wanted to wait, and does not wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if found := super().select(0):
            return found
        if timeout is None:
            raise RuntimeError("the simulation is stuck: everything waits, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and jumps from timer to timer."""

    def __init__(self, selector: JumpingSelector | None = None) -> None:
        self._jumping = selector or JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_simulated(main: Coroutine[Any, Any, _T], selector: JumpingSelector | None = None) -> _T:
    """Like asyncio.run, with a simulated clock. Raises RuntimeError if nothing can happen any more."""
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(selector)) as runner:
        return runner.run(main)


class Clock:
    """Time in simulated seconds: `speed` of them pass in a second of the loop.

    A real run with the speed 60 takes a minute for an hour of service times.

    >>> clock = Clock(speed=60)
    >>> await clock.sleep(30)  # half a second
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Use the time of the running loop."""
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return (self._loop.time() if self._loop is not None else time.monotonic()) * self.speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.speed)

    def call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        assert self._loop is not None, "start() comes first"
        return self._loop.call_later(seconds / self.speed, call)


class Meter:
    """Integrates a count over time, for example the environments in use: 3 for 10 s are 30."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._count = clock, 0
        self._last, self._total = clock.now(), 0.0

    @property
    def total(self) -> float:
        self._advance()
        return self._total

    def add(self, count: int) -> None:
        self._advance()
        self._count += count

    def __enter__(self) -> None:
        self.add(1)

    def __exit__(self, *_: object) -> None:
        self.add(-1)

    def _advance(self) -> None:
        now = self._clock.now()
        self._total += self._count * (now - self._last)
        self._last = now
