"""The conformance suite: what any environment, also a stranger's, must do to be trained in.

    for check in await check_env(MyEnv, tasks, EnvConfig()): print(check)

Each check uses environments of its own. It looks from outside, through the four calls; it cannot know
whether a verdict is just, only that it is a number, stays the same, and is not given for nothing.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from PIL import Image

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
from arpo.types import Screenshot, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. What is not `required` is a warning when it is not `ok`."""

    name: str
    ok: bool
    required: bool
    detail: str

    def __str__(self) -> str:
        mark = "ok  " if self.ok else "FAIL" if self.required else "warn"
        return f"{mark}  {self.name}{': ' if self.detail else ''}{self.detail}"


class Broken(Exception):
    """The environment does not keep a rule; the message says how it was seen."""


async def check_env(factory: EnvFactory, tasks: Sequence[Task], config: EnvConfig) -> list[Check]:
    """Put the environment through every rule; `tasks` are some that it can start."""
    if not tasks:
        raise ValueError("check_env needs at least one task")
    suite = _Suite(factory, tasks, config)
    rules: list[tuple[str, bool, Callable[[], Awaitable[None]]]] = [
        ("every task starts and shows a picture", True, suite.starts),
        ("the screen keeps its size", True, suite.keeps_its_size),
        ("every action is carried out or refused with EnvError", True, suite.takes_every_action),
        ("the verdict is a number in [0, 1] and asking changes nothing", True, suite.judges),
        ("an environment can be closed twice, and unused", True, suite.closes_twice),
        ("two environments do not touch each other", True, suite.stays_apart),
        ("a task always begins the same", False, suite.begins_the_same),
        ("doing nothing does not solve a feasible task", False, suite.nothing_is_not_enough),
    ]
    return [await _tried(name, required, rule) for name, required, rule in rules]


async def _tried(name: str, required: bool, rule: Callable[[], Awaitable[None]]) -> Check:
    try:
        await rule()
    except (Broken, EnvError) as error:
        return Check(name=name, ok=False, required=required, detail=str(error))
    return Check(name=name, ok=True, required=required, detail="")


class _Suite:
    def __init__(self, factory: EnvFactory, tasks: Sequence[Task], config: EnvConfig) -> None:
        self._factory = factory
        self._tasks = tasks
        self._first = tasks[0]
        self._config = config

    async def _make(self) -> Env:
        async with boundary(EnvError, "making one without arguments"):
            return self._factory()

    @asynccontextmanager
    async def _fresh(self) -> AsyncIterator[Env]:
        env = GuardedEnv(await self._make(), self._config)
        try:
            yield env
        finally:
            await env.close()

    async def starts(self) -> None:
        for task in self._tasks:
            async with self._fresh() as env:
                _decode(task.id, (await env.start(task)).screenshot)

    async def keeps_its_size(self) -> None:
        async with self._fresh() as env:
            before = (await env.start(self._first)).screenshot.size
            after = (await env.step((Wait(),))).observation.screenshot.size
        if before != after:
            raise Broken(f"{before} at the start, {after} after one step")

    async def takes_every_action(self) -> None:
        """In one environment as long as it lasts; a terminal action, a refusal or an end takes a new one."""
        async with self._fresh() as env:
            left = list(every_action(*(await env.start(self._first)).screenshot.size))
        while left:
            raw = await self._make()
            guarded = GuardedEnv(raw, self._config)
            try:
                await guarded.start(self._first)
                alive = True
                while left and alive:
                    alive = await _takes(raw, left.pop(0), self._config.step_seconds)
            finally:
                await guarded.close()

    async def judges(self) -> None:
        for task in self._tasks:
            async with self._fresh() as env:
                await env.start(task)
                verdicts = [await env.evaluate(), await env.evaluate()]
                await env.step((Wait(),))
                verdicts.append(await env.evaluate())
            if len(set(verdicts)) > 1:
                raise Broken(f"{task.id}: nothing was done, but three verdicts were {verdicts}")

    async def closes_twice(self) -> None:
        async with self._fresh() as env:
            await env.start(self._first)
            await env.close()
        async with self._fresh() as env:
            await env.close()

    async def stays_apart(self) -> None:
        alone = await self._seen_alone()
        async with self._fresh() as env:
            await env.start(self._first)
            async with self._fresh() as other:
                shown = (await other.start(self._tasks[-1])).screenshot
                for action in every_action(*shown.size):
                    if not isinstance(action, TERMINAL) and not await _takes(other, action, None):
                        break
            beside = await self._seen(env)
        if alone[1] != beside[1]:
            raise Broken(f"the verdict was {alone[1]} alone and {beside[1]} beside another")
        if alone[0] != beside[0] and alone == await self._seen_alone():
            raise Broken("it shows another screen when an environment beside it is used")

    async def _seen_alone(self) -> tuple[str, float]:
        async with self._fresh() as env:
            await env.start(self._first)
            return await self._seen(env)

    async def _seen(self, env: Env) -> tuple[str, float]:
        result = await env.step((Wait(),))
        return result.observation.screenshot.sha256, await env.evaluate()

    async def begins_the_same(self) -> None:
        for task in self._tasks:
            shown = set()
            for _ in range(2):
                async with self._fresh() as env:
                    shown.add((await env.start(task)).screenshot.sha256)
            if len(shown) > 1:
                raise Broken(f"{task.id}: two starts showed different screens")

    async def nothing_is_not_enough(self) -> None:
        for task in self._tasks:
            async with self._fresh() as env:
                await env.start(task)
                if await env.evaluate() == 1.0 and task.evaluator.get("func") != "infeasible":
                    raise Broken(f"{task.id}: scores 1 at once")


def every_action(width: int, height: int) -> tuple[Action, ...]:
    """One of each kind, all within the screen; the terminal ones last."""
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


async def _takes(env: Env, action: Action, seconds: float | None) -> bool:
    """Whether the environment can go on after the action."""
    try:
        async with asyncio.timeout(seconds):
            result = await env.step((action,))
    except EnvError:
        return False
    except Exception as error:
        raise Broken(f"{action} raised {type(error).__name__}: {error}") from error
    return not result.terminated and not isinstance(action, TERMINAL)


def _decode(task_id: str, screenshot: Screenshot) -> None:
    try:
        with Image.open(io.BytesIO(screenshot.png)) as picture:
            picture.load()
    except (OSError, SyntaxError) as error:
        raise Broken(f"{task_id}: the screenshot cannot be decoded: {error}") from error
