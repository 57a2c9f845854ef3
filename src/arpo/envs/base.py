"""The environment interface: four calls, one task, one episode; and the interface of environment sources.

An environment is single use. It executes typed actions in the pixels of its own screenshots and scores the
final state itself. It raises when something is broken; it never returns a score for a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from arpo.actions import Action
from arpo.types import Observation, StepResult, Task


class Env(Protocol):
    """One episode of one task. A complete environment, solved by any click:

        class OneClick:
            async def start(self, task: Task) -> Observation:
                self.clicked = False
                return self.observe()

            async def step(self, actions: tuple[Action, ...]) -> StepResult:
                self.clicked = self.clicked or any(isinstance(action, Click) for action in actions)
                return StepResult(observation=self.observe(), terminated=False)

            async def evaluate(self) -> float:
                return float(self.clicked)

            async def close(self) -> None:
                pass

            def observe(self) -> Observation:
                png = io.BytesIO()
                Image.new("RGB", (224, 168), "white" if self.clicked else "black").save(png, "PNG")
                return Observation(screenshot=Screenshot.of(png.getvalue()))

    `arpo check-env module:OneClick --tasks tasks.json` tests an environment; examples/doorbell.py is a longer
    one.
    """

    async def start(self, task: Task) -> Observation:
        """Set the task up and return the first screenshot. Those of all steps have the same size."""
        ...

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        """Execute the actions of one model answer in order, up to the first terminal one."""
        ...

    async def evaluate(self) -> float:
        """Score the current state, in [0, 1]. A second call returns the same score."""
        ...

    async def close(self) -> None:
        """Free all resources. Closing twice, or before `start`, is allowed."""
        ...


EnvFactory = Callable[[], Env]


def host_of(env: Env) -> str:
    """The address of the host of an environment: its attribute `host`, if that is a text. "": this process.

    In a user's class this name may have another meaning, have no value before `start`, or raise.
    """
    try:
        host = getattr(env, "host", "")
    except Exception:
        return ""
    return host if isinstance(host, str) else ""


class EnvSource(Protocol):
    """Leases environments, a limited number at a time: `async with source.lease() as env: ...`."""

    def lease(self) -> AbstractAsyncContextManager[Env]:
        """Wait for a free slot and yield a new environment; leaving the block frees the slot.

        The caller closes the environment inside the block, to be able to count a fault in `close`. An
        environment on a host is also closed if the caller did not.
        Raises EnvError if no environment is available.
        """
        ...

    def close(self) -> None:
        """End the hosts that this source has started. It leases no environment after that."""
        ...
