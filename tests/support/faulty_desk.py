"""Desk whose environments break now and then: `env.name = "faulty_desk:FaultyDesk"`.

Faults follow a counter of this process: one environment in ten is faulty, in one of three ways.
"""

from __future__ import annotations

import itertools

from arpo.actions import Action
from arpo.envs.desk.env import DeskEnv
from arpo.types import Observation, StepResult, Task

_MADE = itertools.count()
FAULTS = ("start", "step", "evaluate")


class FaultyDesk(DeskEnv):
    def __init__(self) -> None:
        super().__init__(224, 168, 0.0)
        number = next(_MADE)
        self._fault = FAULTS[number // 10 % 3] if number % 10 == 9 else ""

    async def start(self, task: Task) -> Observation:
        self._break("start")
        return await super().start(task)

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        self._break("step")
        return await super().step(actions)

    async def evaluate(self) -> float:
        self._break("evaluate")
        return await super().evaluate()

    def _break(self, call: str) -> None:
        if call == self._fault:
            raise RuntimeError(f"the desktop broke in {call}")
