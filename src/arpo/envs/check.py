"""The conformance suite of `arpo check-env`: the rules for environments.

    for check in await check_env(MyEnv, tasks, EnvConfig(name="mine:MyEnv")):
        print(check)  # ok    every task starts and returns a screenshot

Each check makes its own environments and uses only the four calls of `Env`. The suite cannot know whether a
score is right. It checks its range, its repeatability, and whether doing nothing already scores 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from arpo.actions import (
    TERMINAL,
    Action,
    CallUser,
    Click,
    Direction,
    DoubleClick,
    Drag,
    Fail,
    Finished,
    Hotkey,
    Hover,
    KeyDown,
    KeyUp,
    LongPress,
    OpenApp,
    Point,
    PressBack,
    PressHome,
    RightClick,
    Scroll,
    Type,
    Wait,
)
from arpo.config import EnvConfig
from arpo.envs.base import Env, EnvFactory
from arpo.envs.pool import GuardedEnv
from arpo.errors import EnvError, boundary
from arpo.types import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of one check. If it is not `required`, a failure is a warning.

    >>> print(Check(name="a rule", ok=False, required=True, detail="the observation"))
    FAIL  a rule: the observation
    """

    name: str
    ok: bool
    required: bool
    detail: str

    def __str__(self) -> str:
        mark = "ok  " if self.ok else "FAIL" if self.required else "warn"
        return f"{mark}  {self.name}{': ' if self.detail else ''}{self.detail}"


class CheckFailed(Exception):
    """The environment violates a rule; the message describes the observation."""


async def check_env(factory: EnvFactory, tasks: Sequence[Task], config: EnvConfig) -> list[Check]:
    """Run all checks on `tasks`, at least one. Returns one Check per rule, in a fixed order."""
    if not tasks:
        raise ValueError("check_env needs at least one task")
    suite = _Suite(factory, tasks, config)
    rules: list[tuple[str, bool, Callable[[], Awaitable[None]]]] = [
        ("every task starts and returns a screenshot", True, suite.every_task_starts),
        ("the screen size stays the same", True, suite.screen_size_is_constant),
        ("every action is executed or raises EnvError", True, suite.every_action_is_handled),
        ("evaluate() returns a number in [0, 1] and changes nothing", True, suite.evaluate_is_repeatable),
        ("close() works twice, and before start()", True, suite.close_is_idempotent),
        ("two environments do not affect each other", True, suite.environments_are_isolated),
        ("a task always starts with the same screen", False, suite.start_is_deterministic),
        ("doing nothing does not solve a feasible task", False, suite.inaction_scores_below_one),
    ]
    return [await _run_check(name, required, rule) for name, required, rule in rules]


async def _run_check(name: str, required: bool, rule: Callable[[], Awaitable[None]]) -> Check:
    try:
        await rule()
    except (CheckFailed, EnvError) as error:
        return Check(name=name, ok=False, required=required, detail=str(error))
    return Check(name=name, ok=True, required=required, detail="")


class _Suite:
    def __init__(self, factory: EnvFactory, tasks: Sequence[Task], config: EnvConfig) -> None:
        self._factory = factory
        self._tasks = tasks
        self._first = tasks[0]
        self._config = config

    async def _make(self) -> Env:
        async with boundary(EnvError, "creating one without arguments"):
            return self._factory()

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Env]:
        env = GuardedEnv(await self._make(), self._config)
        try:
            yield env
        finally:
            await env.close()

    async def every_task_starts(self) -> None:
        for task in self._tasks:
            async with self._fresh() as env:
                await env.start(task)

    async def screen_size_is_constant(self) -> None:
        """GuardedEnv compares the sizes."""
        async with self._fresh() as env:
            await env.start(self._first)
            await env.step((Wait(),))

    async def every_action_is_handled(self) -> None:
        """Reuses an environment until an action is terminal, raises EnvError or terminates the episode."""
        async with self._fresh() as env:
            remaining = list(every_action(*(await env.start(self._first)).screenshot.size))
        while remaining:
            raw = await self._make()
            guarded = GuardedEnv(raw, self._config)
            try:
                await guarded.start(self._first)
                alive = True
                while remaining and alive:
                    alive = await _try_action(raw, remaining.pop(0), self._config.step_seconds)
            finally:
                await guarded.close()

    async def evaluate_is_repeatable(self) -> None:
        for task in self._tasks:
            async with self._fresh() as env:
                await env.start(task)
                scores = [await env.evaluate(), await env.evaluate()]
                await env.step((Wait(),))
                scores.append(await env.evaluate())
            if len(set(scores)) > 1:
                raise CheckFailed(f"{task.id}: nothing was done, but three calls returned {scores}")

    async def close_is_idempotent(self) -> None:
        async with self._fresh() as env:
            await env.start(self._first)
            await env.close()
        async with self._fresh() as env:
            await env.close()

    async def environments_are_isolated(self) -> None:
        alone = await self._fingerprint_alone()
        async with self._fresh() as env:
            await env.start(self._first)
            async with self._fresh() as other:
                screen = (await other.start(self._tasks[-1])).screenshot
                for action in every_action(*screen.size):
                    if not isinstance(action, TERMINAL) and not await _try_action(other, action, None):
                        break
            beside = await self._fingerprint(env)
        if alone[1] != beside[1]:
            raise CheckFailed(f"the score is {alone[1]} alone, but {beside[1]} while another one runs")
        if alone[0] != beside[0] and alone == await self._fingerprint_alone():
            raise CheckFailed("the screen changes while another environment is used")

    async def _fingerprint_alone(self) -> tuple[str, float]:
        async with self._fresh() as env:
            await env.start(self._first)
            return await self._fingerprint(env)

    async def _fingerprint(self, env: Env) -> tuple[str, float]:
        result = await env.step((Wait(),))
        return result.observation.screenshot.sha256, await env.evaluate()

    async def start_is_deterministic(self) -> None:
        for task in self._tasks:
            screens = set()
            for _ in range(2):
                async with self._fresh() as env:
                    screens.add((await env.start(task)).screenshot.sha256)
            if len(screens) > 1:
                raise CheckFailed(f"{task.id}: two starts showed different screens")

    async def inaction_scores_below_one(self) -> None:
        for task in self._tasks:
            async with self._fresh() as env:
                await env.start(task)
                if await env.evaluate() == 1.0 and task.evaluator.get("func") != "infeasible":
                    raise CheckFailed(f"{task.id}: scores 1 right after start")


def every_action(width: int, height: int) -> tuple[Action, ...]:
    """Return actions of every class, with points inside the screen; the terminal ones come last."""
    centre, corner = Point(width // 2, height // 2), Point(width - 1, height - 1)
    pointed = [kind(point=centre) for kind in (Click, DoubleClick, RightClick, Hover, LongPress)]
    scrolls = [Scroll(point=centre, direction=way) for way in Direction]
    return (
        *pointed,
        *scrolls,
        Scroll(point=None, direction=Direction.DOWN),
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
        Finished(content="done"),
        Fail(),
        CallUser(),
    )


async def _try_action(env: Env, action: Action, seconds: float | None) -> bool:
    """Whether the episode continues after the action. EnvError is allowed, other exceptions are not."""
    try:
        async with asyncio.timeout(seconds):
            result = await env.step((action,))
    except EnvError:
        return False
    except (Exception, SystemExit) as error:
        raise CheckFailed(f"{action} raised {type(error).__name__}: {error}") from error
    return not result.terminated and not isinstance(action, TERMINAL)
