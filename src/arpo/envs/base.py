"""The environment protocol: four calls, one task, one episode; and where environments come from.

An Env is single use. It acts on typed actions in the pixels of the screenshots that it shows, judges the
final state itself, and raises when something is broken; it never returns a reward for a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from arpo.actions import Action
from arpo.types import Observation, StepResult, Task


class Env(Protocol):
    async def start(self, task: Task) -> Observation: ...

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        """Carry out one answer of the model: its calls in order, up to the first terminal one."""
        ...

    async def evaluate(self) -> float:
        """Judge the state as it is now, in [0, 1]."""
        ...

    async def close(self) -> None: ...


EnvFactory = Callable[[], Env]


class EnvSource(Protocol):
    def lease(self) -> AbstractAsyncContextManager[Env]:
        """Wait for a place and give a fresh environment in it; at the end the place is free again.

        Whoever leases closes the environment before the lease ends, because a fault in closing is theirs
        to count. EnvError where none can be had.
        """
        ...
