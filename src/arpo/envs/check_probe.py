"""An environment under test by `check.py`, and the description of its faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import arpo.actions as act
from arpo import errors
from arpo.actions import Action, Direction, Point
from arpo.config import EnvConfig
from arpo.envs import pool, return_values
from arpo.envs.base import Env
from arpo.envs.loop_watch import LoopWatch
from arpo.envs.pool import GuardedEnv
from arpo.errors import EnvError, EnvTimeout, boundary
from arpo.types import Observation, StepResult, Task

_POINTED = (
    act.Click,
    act.DoubleClick,
    act.RightClick,
    act.MiddleClick,
    act.TripleClick,
    act.Hover,
    act.LongPress,
)
MAX_TIMEOUTS = 2  # of a call; then it is not tried again
# How to correct an exception of a call.
REMEDIES = {
    "create": "the constructor must work without arguments",
    "start": "correct this line, or the task",
    "step": "correct this line; ignore actions that the environment does not support",
    "evaluate": "correct this line; score an unfinished task 0.0",
    "close": "correct this line; close() must work twice, and before start()",
}

_T = TypeVar("_T")


class Probe:
    """An environment under test. A call that hung twice is not tried again: it fails at once."""

    def __init__(
        self, raw: Env, config: EnvConfig, watch: LoopWatch, timeouts: dict[str, list[EnvTimeout]]
    ) -> None:
        self.raw = raw
        self._guarded = GuardedEnv(raw, config)
        self._config = config
        self._watch = watch
        self._timeouts = timeouts

    async def start(self, task: Task) -> Observation:
        return await self._call("start", lambda: self._guarded.start(task))

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        return await self._call("step", lambda: self._guarded.step(actions))

    async def evaluate(self) -> float:
        return await self._call("evaluate", self._guarded.evaluate)

    async def close(self) -> None:
        await self._call("close", self._guarded.close)

    async def returns_bool(self) -> bool:
        """Whether evaluate() returns True or False."""
        async with boundary(EnvError, "evaluate", self._config.evaluate_seconds):
            return isinstance(await self.raw.evaluate(), bool)

    async def _call(self, name: str, call: Callable[[], Awaitable[_T]]) -> _T:
        hung = self._timeouts.setdefault(name, [])
        if len(hung) >= MAX_TIMEOUTS:
            raise hung[0]
        try:
            with self._watch.during(name):
                return await call()
        except EnvTimeout as fault:
            hung.append(fault)
            raise


def describe(fault: EnvError) -> str:
    """One line: the call, the fault, and the remedy of an exception or a timeout."""
    message = fault.message.partition("\n")[0][:300]
    if isinstance(fault, EnvTimeout):
        limit = "step" if fault.where == "close" else fault.where
        message += f": make it faster, or raise --env.{limit}_seconds"
    elif _raised_in(fault) == errors.__file__:
        message += f": {REMEDIES[fault.where]}"
    return f"{fault.where}: {message}"


def raised_by_env(fault: EnvError) -> bool:
    """Whether the environment raised this EnvError itself, and not the guard around it."""
    return _raised_in(fault) not in (errors.__file__, pool.__file__, return_values.__file__)


def _raised_in(fault: EnvError) -> str:
    """The file of the `raise` statement."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename if trace is not None else ""


def every_action(width: int, height: int) -> tuple[Action, ...]:
    """Return actions of every class, with points inside the screen; the terminal ones come last."""
    centre, corner = Point(width // 2, height // 2), Point(width - 1, height - 1)
    pointed = [kind(point=centre) for kind in _POINTED]
    scrolls = [act.Scroll(point=centre, direction=way) for way in Direction]
    return (
        *pointed,
        *scrolls,
        act.Scroll(point=None, direction=Direction.DOWN),
        act.Scroll(point=centre, direction=Direction.UP, amount=3),
        act.MouseDown(point=centre),
        act.MouseUp(point=corner),
        act.Drag(start=centre, end=corner),
        act.Hotkey(keys=("ctrl", "a")),
        act.Hotkey(keys=("pagedown",)),
        act.KeyDown(key="shift"),
        act.KeyUp(key="shift"),
        act.Type(text='it\'s "两" lines\nof text', submit=True),
        act.OpenApp(name="Notes"),
        act.PressHome(),
        act.PressBack(),
        act.Wait(),
        act.Wait(seconds=0.5),
        act.GiveAnswer(text="42"),
        act.Finished(content="done"),
        act.Fail(),
        act.CallUser(),
    )
