"""Detects an outage of all environments, and waits until one works again.

After a failed attempt, a probe starts an environment with an earlier, successful task. If the probe fails
too, the fault is an outage: the task is not to blame. The run pauses, and the pauses between probes grow.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from arpo.envs.slots import Slots
from arpo.errors import EnvError, Outage
from arpo.types import Task

FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds between two probes

Probe = Callable[[Task], Awaitable[bool]]


class OutageWatch:
    """`probe` starts an environment with a task and returns whether it worked.

    `working` is a task of which an episode was played. Without one, no outage is declared: until a first
    episode succeeds, the environment or its settings are probably wrong, and waiting does not help.
    """

    def __init__(self, probe: Probe, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.working: Task | None = None
        self.report: Callable[[str], None] = lambda text: None
        self.first_pause = FIRST_PAUSE
        self.is_down = False
        self._probe, self._limit, self._clock = probe, seconds, clock
        self._turn = Slots(1)
        self._rounds = 0  # finished series of probes
        self._was_outage = False  # result of the last one
        self._seconds = 0.0
        self._stopping = False
        self._wake: asyncio.Event | None = None

    async def passed(self) -> None:
        """Wait while no environment works."""
        while self.is_down:
            async with self._turn():
                pass

    async def ended(self, fault: EnvError) -> bool:
        """After a fault: wait until an environment works. Returns True if there was an outage.

        One caller probes, the others wait for its result. Raises Outage after `seconds`, or after `stop`.
        """
        if self.working is None:
            return False
        seen = self._rounds
        async with self._turn():
            if self._rounds == seen:
                self._was_outage = await self._wait(self.working, fault)
                self._rounds += 1
            return self._was_outage

    def stop(self) -> None:
        """End the current outage, if there is one, and all later ones with `Outage`. Call it in the loop."""
        self._stopping = True
        if self._wake is not None:
            self._wake.set()

    def take_seconds(self) -> float:
        """Seconds of pauses since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    async def _wait(self, task: Task, fault: EnvError) -> bool:
        """Probe until an environment works. Returns False if the first probe finds one."""
        if await self._probe(task):
            return False
        reason = f"{fault.where}: {fault.message.partition(chr(10))[0][:300]}"
        began, pause = self._clock(), self.first_pause
        self.is_down, self._wake = True, asyncio.Event()
        try:
            while True:
                left = self._limit - (self._clock() - began)
                if self._stopping or left <= 0:
                    raise Outage(
                        f"no environment has worked for {self._clock() - began:.0f} s (env.outage_seconds): "
                        f"{reason}. Correct the environments, then run the same command again to resume"
                    )
                pause = min(pause, left)
                self.report(f"no environment works ({reason}). The run pauses, next attempt in {pause:.0f} s")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), pause)
                if not self._stopping and await self._probe(task):
                    self.report(
                        f"the environments work again after {self._clock() - began:.0f} s: the run continues"
                    )
                    return True
                pause = min(2 * pause, MAX_PAUSE)
        finally:
            self.is_down = False
            self._seconds += self._clock() - began
