"""Detects an outage of all environments, and waits until one works again.

After two faults without a played episode between them, a probe starts an environment with an earlier,
successful task. If this fails twice, the fault is an outage: the task is not to blame. The run pauses, and
the pauses between probes grow. A single fault needs no probe, which can take minutes: the next attempt of the
episode shows whether environments work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import count, cycle

from arpo.envs.slots import Slots
from arpo.errors import EnvError, Outage
from arpo.processes.backoff import pause_after
from arpo.types import Task

_FIRST_PROBES = 2  # failed ones until the run pauses: one may meet a single broken environment

Probe = Callable[[Task], Awaitable[bool]]


class OutageWatch:
    """`probe` starts an environment with a task and returns whether it worked.

    No outage is declared before `worked`: until a first episode was played, the environment or its settings
    are probably wrong, and waiting does not help.
    """

    def __init__(self, probe: Probe, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.report: Callable[[str], None] = lambda text: None
        self.is_down = False
        self._probe, self._limit, self._clock = probe, seconds, clock
        self._working: list[Task] = []  # the last two tasks of which an episode was played
        self._faults = 0  # since the last played episode
        self._turn = Slots(1)
        self._rounds = 0  # finished series of probes
        self._was_outage = False  # result of the last one
        self._seconds = 0.0
        self._stopping = False
        self._gave_up = False  # with `Outage`, perhaps for another episode
        self._attempt: asyncio.Timeout | None = None  # the current pause and the probe after it

    def worked(self, task: Task) -> None:
        """An episode of the task was played."""
        self._faults = 0
        self._working = [*(one for one in self._working if one.id != task.id), task][-2:]

    async def passed(self) -> None:
        """Wait while no environment works."""
        while self.is_down:
            async with self._turn():
                pass

    async def ended(self, task: Task, fault: EnvError, *, is_last: bool) -> bool:
        """After a fault of a task: wait until an environment works. Returns True if there was an outage.

        `is_last`: the episode has no further attempt, so even a single fault is examined. One caller probes,
        the others wait for its result. Raises Outage after `seconds`, or after `stop`.
        """
        self._faults += 1
        if not self._working or (self._faults == 1 and not is_last):
            return False
        seen = self._rounds
        async with self._turn():
            if self._rounds == seen:
                others_first = sorted(self._working, key=lambda one: one.id == task.id)
                self._was_outage = await self._wait(cycle(others_first), fault)
                self._rounds += 1
            return self._was_outage

    def stop(self) -> None:
        """End the current outage, if there is one, with `Outage`. Call it in the loop.

        A later outage ends after one more probe: the others may fail by chance, and `Outage` costs a batch.
        """
        if self._attempt is not None and not self._stopping:
            self._attempt.reschedule(0.0)
        self._stopping = True

    def take_seconds(self) -> float:
        """Seconds of pauses since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    async def _wait(self, tasks: Iterator[Task], fault: EnvError) -> bool:
        """Probe until an environment works. Returns False if one of the first probes finds one."""
        for _ in range(_FIRST_PROBES):
            if await self._probe(next(tasks)):
                return False
        reason = f"{fault.where}: {fault.message.partition(chr(10))[0][:300]}"
        began = self._clock()
        self.is_down = True
        try:
            for attempt in count():
                left = self._limit - (self._clock() - began)
                if left <= 0 or (self._stopping and (attempt or self._gave_up)):
                    self._gave_up = True
                    raise Outage(
                        f"no environment has worked for {self._clock() - began:.0f} s (env.outage_seconds): "
                        f"{reason}. Correct the environments, then run the same command again to resume"
                    )
                pause = min(pause_after(attempt + 1), left)
                self.report(f"no environment works ({reason}). The run pauses, next attempt in {pause:.0f} s")
                if await self._works_after(pause, next(tasks)):
                    break
        finally:
            self.is_down = False
            self._seconds += self._clock() - began
        self.report(f"the environments work again after {self._clock() - began:.0f} s: the run continues")
        return True

    async def _works_after(self, pause: float, task: Task) -> bool:
        """Probe after a pause. `stop` ends it: then the result is False."""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as self._attempt:
                    await asyncio.sleep(pause)
                    return await self._probe(task)
        finally:
            self._attempt = None
        return False
