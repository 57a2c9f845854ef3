"""Desk as an environment: tasks in OSWorld's schema, typed actions in, screenshots and a score out.

The score depends only on the final world, not on the steps. Partial credit for an unfinished task is
optional: use it for training, not for evaluation. An unreadable task raises `EnvError`.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

import arpo.actions as act
from arpo.actions import Action, Direction, Point, scale, up_to_terminal
from arpo.envs.answers import answer_in, answer_score
from arpo.envs.desk.apps import APPS
from arpo.envs.desk.canvas import LAYOUT_HEIGHT, LAYOUT_WIDTH, PALETTE, Canvas
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.world import World
from arpo.errors import EnvError
from arpo.png import keep_pixels
from arpo.types import Observation, Screenshot, StepResult, Task

_LINES_PER_SCROLL = 2
_LINES_PER_NOTCH = 0.4  # a scroll without an amount has five notches on a real desktop
_TYPED_KEYS = {"\n": "enter", "\t": "tab"}


def set_up(task: Task) -> Desktop:
    """A desktop in the initial state of the task."""
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
                raise EnvError(
                    "start",
                    f"task {task.id}: Desk cannot run the setup step of type {kind!r}; "
                    "use one 'world', then 'open' with app, column and row",
                )
    if desktop is None:
        raise EnvError("start", f"task {task.id}: config has no setup step of type 'world'")
    return desktop


def task_score(task: Task, world: World, last_action: Action | None, answer: str | None = None) -> float:
    """1 if exactly the requested changes were made, else 0. An infeasible task requires `Fail` at the end.

    A question (evaluator "answer") requires the right answer, and an unchanged world.
    """
    gave_up = isinstance(last_action, act.Fail)
    match task.evaluator:
        case {"func": "infeasible"}:
            return float(gave_up)
        case {"func": "answer"}:
            return float(world == task.config[0]["parameters"]) * answer_score(task, answer)
        case {"func": "desk_state", "expected": {"rules": changed}}:
            initial = task.config[0]["parameters"]
            return float(not gave_up and world == {**initial, **changed})
        case _:
            func = task.evaluator.get("func")
            raise EnvError(
                "evaluate",
                f"task {task.id}: Desk has no evaluator {func!r}; use 'desk_state', 'answer' or 'infeasible'",
            )


def task_progress(task: Task, world: World, last_action: Action | None) -> float:
    """Share of the requested changes made so far: max(0, 1 − d/d0).

    d counts the leaves in which the world differs from the target; d0 is d at the start. 0 for an infeasible
    task and after `Fail`.
    """
    match task.evaluator:
        case {"func": "desk_state", "expected": {"rules": changed}} if not isinstance(last_action, act.Fail):
            initial = task.config[0]["parameters"]
            target = {**initial, **changed}
            initial_count = _count_differences(initial, target)
            return max(0.0, 1 - _count_differences(world, target) / initial_count) if initial_count else 0.0
        case _:
            return 0.0


def _count_differences(one: World, other: World) -> int:
    """Number of different leaves. {"a": [1, 2]} and {"a": [1], "b": 3} differ in 2."""
    first, second = dict(_leaves(one, ())), dict(_leaves(other, ()))
    return sum(
        path not in first or path not in second or first[path] != second[path]
        for path in first.keys() | second.keys()
    )


def _leaves(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Paths and values of all leaves. An empty dict or list is a leaf."""
    match value:
        case dict() if value:
            for key, inner in value.items():
                yield from _leaves(inner, (*path, key))
        case list() if value:
            for index, inner in enumerate(value):
                yield from _leaves(inner, (*path, index))
        case _:
            yield path, value


class DeskEnv:
    """One episode on Desk, drawn in width x height pixels. `partial` is the maximum partial credit."""

    def __init__(self, width: int = LAYOUT_WIDTH, height: int = LAYOUT_HEIGHT, partial: float = 0.0) -> None:
        self.width, self.height, self._partial = width, height, partial
        self._last_action: Action | None = None
        self._answer: str | None = None
        self._last_canvas: Canvas | None = None

    async def start(self, task: Task) -> Observation:
        self.task = task
        self.desktop = set_up(task)
        return self._observe()

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        for action in up_to_terminal(actions):
            perform(self.desktop, scale(action, (self.width, self.height), (LAYOUT_WIDTH, LAYOUT_HEIGHT)))
            self._last_action = action
            self._answer = answer_in(action, self._answer)
        return StepResult(observation=self._observe())

    async def evaluate(self) -> float:
        end_state = self.task, self.desktop.world, self._last_action
        return task_score(*end_state, self._answer) or self._partial * task_progress(*end_state)

    async def close(self) -> None:
        """Nothing to release."""

    def _observe(self) -> Observation:
        """The current screen. An unchanged screen returns the same object, which saves encoding it again."""
        canvas = self.desktop.draw(self.width, self.height)
        if self._last_canvas is None or not np.array_equal(canvas.pixels, self._last_canvas.pixels):
            self._last_canvas = canvas
            self._observation = Observation(screenshot=Screenshot.of(canvas.png()))
            keep_pixels(self._observation.screenshot, Image.fromarray(PALETTE[canvas.pixels]))
        return self._observation


def perform(desktop: Desktop, action: Action) -> None:
    """Perform an action. Its points are in layout units."""
    match action:
        case act.Click(point=point) | act.LongPress(point=point):
            desktop.click(*_integers(point))
        case act.DoubleClick(point=point):
            desktop.double_click(*_integers(point))
        case act.RightClick(point=point):
            desktop.right_click(*_integers(point))
        case act.MiddleClick(point=point):
            desktop.middle_click(*_integers(point))
        case act.TripleClick(point=point):
            desktop.triple_click(*_integers(point))
        case act.MouseDown(point=point):
            desktop.mouse_down(*_integers(point))
        case act.MouseUp(point=point):
            desktop.mouse_up(*_integers(point))
        case act.Drag(start=start, end=end):
            desktop.drag(_integers(start), _integers(end))
        case act.Scroll(point=point, direction=Direction.UP | Direction.DOWN as direction, amount=amount):
            lines = _LINES_PER_SCROLL if amount is None else math.ceil(amount * _LINES_PER_NOTCH)
            sign = 1 if direction is Direction.DOWN else -1
            desktop.scroll(*_integers(point or Point(LAYOUT_WIDTH / 2, LAYOUT_HEIGHT / 2)), sign * lines)
        case act.Hotkey(keys=keys):
            desktop.key(keys)
        case act.KeyDown(key=key):
            desktop.key_down(key)
        case act.KeyUp(key=key):
            desktop.key_up(key)
        case act.Type(text=text, submit=submit):
            _type(desktop, text + "\n" * submit)
        case act.OpenApp(name=name):
            desktop.open_app(name)
        case act.PressBack():
            desktop.key(("esc",))


def _integers(point: Point) -> tuple[int, int]:
    return int(point.x), int(point.y)


def _type(desktop: Desktop, text: str) -> None:
    for piece in re.split("([\n\t])", text):
        if key := _TYPED_KEYS.get(piece):
            desktop.key((key,))
        else:
            desktop.type(piece)
