"""An environment under test by `check.py`, and the description of its faults."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from arpo import errors
from arpo.actions import (
    Action,
    CallUser,
    Click,
    Direction,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    GiveAnswer,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    LongPress,
    MiddleClick,
    MouseDown,
    MouseUp,
    OpenApp,
    Point,
    PressBack,
    PressHome,
    RightClick,
    Scroll,
    TripleClick,
    Type,
    Wait,
)
from arpo.config import EnvConfig
from arpo.envs import pool, return_values
from arpo.envs.base import Env
from arpo.envs.loop_watch import LoopWatch
from arpo.envs.pool import GuardedEnv
from arpo.errors import EnvError, EnvTimeout, boundary
from arpo.types import Observation, StepResult, Task

_POINTED = (Click, DoubleClick, RightClick, MiddleClick, TripleClick, Hover, LongPress)
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
    scrolls = [Scroll(point=centre, direction=way) for way in Direction]
    return (
        *pointed,
        *scrolls,
        Scroll(point=None, direction=Direction.DOWN),
        Scroll(point=centre, direction=Direction.UP, amount=3),
        MouseDown(point=centre),
        MouseUp(point=corner),
        Drag(start=centre, end=corner),
        Hotkey(keys=("ctrl", "a")),
        Hotkey(keys=("pagedown",)),
        KeyDown(key="shift"),
        KeyUp(key="shift"),
        Type(text='it\'s "两" lines\nof text', submit=True),
        OpenApp(name="Notes"),
        PressHome(),
        PressBack(),
        Wait(),
        Wait(seconds=0.5),
        GiveAnswer(text="42"),
        Finished(content="done"),
        Fail(),
        CallUser(),
    )
