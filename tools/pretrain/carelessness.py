"""A careless demonstrator: the solver with documented faults, from which it recovers as well as it can.

A fault is drawn at random, independent of the screen and of the task. So no model can tell from the screen
when a fault is right, and to remove one kind of fault on some tasks is to remove it on all tasks.

A lower sampling temperature makes rare answers rarer: at 0.6, a fault of probability 0.06 keeps 0.01, one of
0.4 keeps 0.34. So the most important faults are frequent at few decisions, not rare at every step.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from arpo.actions import TERMINAL, Click, DoubleClick, Drag, Fail, Finished, Point, RightClick
from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH
from arpo.envs.desk.desktop import Desktop, Element
from arpo.envs.desk.env import perform, set_up, task_score
from arpo.envs.desk.goals import Goal, from_json, next_step
from arpo.envs.desk.goals.base import Step, click, right_click
from arpo.types import Task

Seen = TypeVar("Seen")
_BESIDE = 2  # a slip hits one of this many nearest elements
_MENU_DETOURS = 0.25  # share of the detours to a menu, if the front window has one
_NOT_CLICKED = ("Label", "title", "ScrollBar", "close")


def _fault(rate: float, description: str) -> Any:
    return field(default=rate, metadata={"description": description})


@dataclass(frozen=True, slots=True, kw_only=True)
class Carelessness:
    """Probability of each kind of fault; the defaults are those of level 1."""

    early_finish: float = _fault(
        0.4, "per episode: says finished() one step before the goals are reached, for example without Save"
    )
    giving_up: float = _fault(0.1, "per episode: says error_env() at the start of a feasible task")
    skipped_goal: float = _fault(0.25, "per goal of several: leaves it out")
    neighbour: float = _fault(0.06, "per step: points at one of the two elements nearest to the target")
    detour: float = _fault(0.04, "per step: opens another application or a menu, and comes back")

    @classmethod
    def of(cls, level: float) -> Carelessness:
        """All rates times `level`, at most 1. Level 0 has no faults."""
        return cls(**{name: min(1.0, level * rate) for name, rate in asdict(cls()).items()})


def demonstrate(
    rng: random.Random,
    desktop: Desktop,
    goals: Sequence[Goal],
    faults: Carelessness,
    *,
    look: Callable[[Desktop], Seen],
    max_steps: int,
) -> list[tuple[Seen, Step]]:
    """One episode: what `look` returns before each step, and the step.

    It ends after `max_steps`, or when the solver knows no step because a fault has removed its target.
    """
    several = len(goals) > 1
    goals = [goal for goal in goals if not (several and rng.random() < faults.skipped_goal)]
    gives_up, finishes_early = rng.random() < faults.giving_up, rng.random() < faults.early_finish
    turns: list[tuple[Seen, Step]] = []
    while len(turns) < max_steps:
        try:
            step = next_step(desktop, goals)
        except (AssertionError, IndexError, KeyError, StopIteration):
            break
        if gives_up and not turns and not isinstance(step.action, TERMINAL):
            step = Step(f"no {step.thought.split()[-1]}", Fail())
        step = _careless(rng, desktop, step, faults)
        turns.append((look(desktop), step))
        perform(desktop, step.action)
        if isinstance(step.action, TERMINAL):
            break
    if finishes_early and len(turns) > 1 and isinstance(turns[-1][1].action, Finished):
        return [*turns[:-2], (turns[-2][0], turns[-1][1])]
    return turns


def solves(task: Task, faults: Carelessness, rng: random.Random, max_steps: int) -> bool:
    """Whether one demonstration of the task succeeds."""
    desktop, goals = set_up(task), from_json(task.evaluator["solution"])
    turns = demonstrate(
        rng, desktop, goals, faults, look=lambda seen: copy.deepcopy(seen.world), max_steps=max_steps
    )
    world, step = turns[-1]
    ended = isinstance(step.action, TERMINAL)
    return task_score(task, world if ended else desktop.world, step.action) == 1


def _careless(rng: random.Random, desktop: Desktop, step: Step, faults: Carelessness) -> Step:
    """The solver's step, or a detour or slip in its place. The last step of an episode stays."""
    if isinstance(step.action, TERMINAL):
        return step
    draw = rng.random()
    if draw < faults.detour:
        return _detour(rng, desktop)
    return _slip(rng, desktop, step) if draw < faults.detour + faults.neighbour else step


def _detour(rng: random.Random, desktop: Desktop) -> Step:
    """Open another application, or a menu of the front window."""
    front = desktop.front
    elements = desktop.visible_elements()
    others = [
        each
        for each in elements
        if each.kind == "app" and (front is None or type(front) is not desktop.apps[each.label])
    ]
    steps = [click(each, f"Open {each.label}") for each in others]
    if desktop.popup is None and front is not None and rng.random() < _MENU_DETOURS:
        items = [each for each in elements if each.kind == "Item" and front.contains(each.column, each.row)]
        steps = [right_click(each, f"right click {each.label.split()[0]}") for each in items] or steps
    return rng.choice(steps)


def _slip(rng: random.Random, desktop: Desktop, step: Step) -> Step:
    """The same thought with the pointer beside its target. Other actions stay as they are."""
    match step.action:
        case Click(point=target) as action:
            return Step(step.thought, Click(point=_beside(rng, desktop, target) or action.point))
        case DoubleClick(point=target) as double:
            return Step(step.thought, DoubleClick(point=_beside(rng, desktop, target) or double.point))
        case RightClick(point=target) as right:
            return Step(step.thought, RightClick(point=_beside(rng, desktop, target) or right.point))
        case Drag(start=start, end=end):
            return Step(step.thought, Drag(start=start, end=_beside(rng, desktop, end) or end))
        case _:
            return step


def _beside(rng: random.Random, desktop: Desktop, point: Point) -> Point | None:
    """The centre of one of the nearest other elements of the same menu, window or task bar."""
    x, y = point.x, point.y
    elements = desktop.visible_elements()
    hit = [each for each in elements if _contains(each, x, y)]
    if not hit:
        return None
    target = next((each for each in hit if each.kind == "choice"), hit[-1])
    place = _place(desktop, target)
    others = [
        each
        for each in elements
        if each is not target and each.kind not in _NOT_CLICKED and _place(desktop, each) == place
    ]
    others.sort(key=lambda each: (each.centre[0] - x) ** 2 + (each.centre[1] - y) ** 2)
    return Point(*rng.choice(others[:_BESIDE]).centre) if others else None


def _contains(element: Element, x: float, y: float) -> bool:
    column, row = x // CELL_WIDTH - element.column, y // CELL_HEIGHT - element.row
    return 0 <= column < element.columns and 0 <= row < element.rows


def _place(desktop: Desktop, element: Element) -> object:
    """The menu, the task bar, or the window of an element."""
    if element.kind in ("app", "choice"):
        return element.kind
    return next((id(w) for w in reversed(desktop.windows) if w.contains(element.column, element.row)), None)
