"""Desk as an environment: tasks in OSWorld's schema, typed actions in, screenshots out, a verdict at the end.

The verdict looks at the world alone, never at the path. By option an unfinished goal is worth part of the way
towards it, which is for learning, not for measuring. A task that Desk cannot read is an `EnvError`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from arpo.actions import (
    Action,
    Click,
    Direction,
    DoubleClick,
    Drag,
    Fail,
    Hotkey,
    KeyDown,
    KeyUp,
    LongPress,
    OpenApp,
    Point,
    PressBack,
    RightClick,
    Scroll,
    Type,
    scale,
    up_to_terminal,
)
from arpo.envs.desk.apps import APPS
from arpo.envs.desk.canvas import LAYOUT_HEIGHT, LAYOUT_WIDTH, Canvas
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.world import World
from arpo.errors import EnvError
from arpo.types import Observation, Screenshot, StepResult, Task

_LINES_A_SCROLL = 2
_TYPED_KEYS = {"\n": "enter", "\t": "tab"}


def set_up(task: Task) -> Desktop:
    """The desktop as the task's config describes it."""
    desktop: Desktop | None = None
    for step in task.config:
        match step:
            case {"type": "world", "parameters": world}:
                desktop = Desktop(copy.deepcopy(world), APPS)
            case {"type": "open", "parameters": {"app": app, "column": int(column), "row": int(row)}} if (
                desktop and app in APPS
            ):
                desktop.launch(app, column, row)
            case _:
                kind = step.get("type")
                raise EnvError("start", f"task {task.id}: Desk has no setup step {kind!r} like this one")
    if desktop is None:
        raise EnvError("start", f"task {task.id}: config has no step of type 'world'")
    return desktop


def task_score(task: Task, world: World, last: Action | None) -> float:
    """1 if the world is what the task asks for and nothing else changed; an infeasible task wants FAIL."""
    gave_up = isinstance(last, Fail)
    match task.evaluator:
        case {"func": "infeasible"}:
            return float(gave_up)
        case {"func": "desk_state", "expected": {"rules": changed}}:
            initial = task.config[0]["parameters"]
            return float(not gave_up and world == {**initial, **changed})
        case _:
            func = task.evaluator.get("func")
            raise EnvError("evaluate", f"task {task.id}: Desk has no evaluator {func!r}")


def task_progress(task: Task, world: World, last: Action | None) -> float:
    """The share of what had to change that has; 0 for what was given up, is infeasible or has moved away.

    It is 1 − d/d0: d counts the leaves in which the world differs from what the task asks for, d0 those in
    which it did at first.
    """
    match task.evaluator:
        case {"func": "desk_state", "expected": {"rules": changed}} if not isinstance(last, Fail):
            initial = task.config[0]["parameters"]
            target = {**initial, **changed}
            at_first = _differences(initial, target)
            return max(0.0, 1 - _differences(world, target) / at_first) if at_first else 0.0
        case _:
            return 0.0


def _differences(one: World, other: World) -> int:
    """In how many leaves, of either, two worlds differ: {"a": [1, 2]} and {"a": [1], "b": 3} in two."""
    mine, theirs = dict(_leaves(one, ())), dict(_leaves(other, ()))
    return sum(
        path not in mine or path not in theirs or mine[path] != theirs[path]
        for path in mine.keys() | theirs.keys()
    )


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every value that holds no other, with the keys that lead to it; an empty folder or list is one too."""
    match value:
        case dict() if value:
            for key, inner in value.items():
                yield from _leaves(inner, (*path, key))
        case list() if value:
            for place, inner in enumerate(value):
                yield from _leaves(inner, (*path, place))
        case _:
            yield path, value


class DeskEnv:
    """One episode on the embedded desktop, drawn at the size given; `partial` is what the way is worth."""

    def __init__(self, width: int = LAYOUT_WIDTH, height: int = LAYOUT_HEIGHT, partial: float = 0.0) -> None:
        self.width, self.height, self._partial = width, height, partial
        self._last: Action | None = None
        self._seen: Canvas | None = None

    async def start(self, task: Task) -> Observation:
        self.task = task
        self.desktop = set_up(task)
        return self._look()

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        for action in up_to_terminal(actions):
            act(self.desktop, scale(action, (self.width, self.height), (LAYOUT_WIDTH, LAYOUT_HEIGHT)))
            self._last = action
        return StepResult(observation=self._look())

    async def evaluate(self) -> float:
        ended = self.task, self.desktop.world, self._last
        return task_score(*ended) or self._partial * task_progress(*ended)

    async def close(self) -> None:
        """Nothing outlives the object."""

    def _look(self) -> Observation:
        """The screen; while nothing on it changes, the very same observation."""
        canvas = self.desktop.draw(self.width, self.height)
        if self._seen is None or not np.array_equal(canvas.pixels, self._seen.pixels):
            self._seen = canvas
            self._observation = Observation(screenshot=Screenshot.of(canvas.png()))
        return self._observation


def act(desktop: Desktop, action: Action) -> None:
    """Carry out an action whose places are in units of the layout."""
    match action:
        case Click(point=point) | LongPress(point=point):
            desktop.click(*_whole(point))
        case DoubleClick(point=point):
            desktop.double_click(*_whole(point))
        case RightClick(point=point):
            desktop.right_click(*_whole(point))
        case Drag(start=start, end=end):
            desktop.drag(_whole(start), _whole(end))
        case Scroll(point=point, direction=Direction.UP | Direction.DOWN as direction):
            lines = _LINES_A_SCROLL if direction is Direction.DOWN else -_LINES_A_SCROLL
            desktop.scroll(*_whole(point or Point(LAYOUT_WIDTH / 2, LAYOUT_HEIGHT / 2)), lines)
        case Hotkey(keys=keys):
            desktop.key(keys)
        case KeyDown(key=key):
            desktop.key_down(key)
        case KeyUp(key=key):
            desktop.key_up(key)
        case Type(text=text, submit=submit):
            _type(desktop, text + "\n" * submit)
        case OpenApp(name=name):
            desktop.open_app(name)
        case PressBack():
            desktop.key(("esc",))


def _whole(point: Point) -> tuple[int, int]:
    return int(point.x), int(point.y)


def _type(desktop: Desktop, text: str) -> None:
    for piece in re.split("([\n\t])", text):
        if key := _TYPED_KEYS.get(piece):
            desktop.key((key,))
        else:
            desktop.type(piece)
