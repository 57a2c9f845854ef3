"""A small literal world, and helpers to operate a desktop by the labels of its elements."""

from __future__ import annotations

import copy
from typing import Any

from arpo.actions import Action, Fail, Finished
from arpo.envs.desk.apps import APPS
from arpo.envs.desk.desktop import Desktop, Element
from arpo.envs.desk.env import perform, set_up, task_score
from arpo.envs.desk.goals import from_json, next_step
from arpo.types import Task

WORLD: dict[str, Any] = {
    "files": {"": {"report": "milk", "budget": "bread"}, "Work": {"poem": "tea"}, "Old": {}},
    "mail": {
        "In": [
            {"from": "Anna", "subject": "lunch", "body": "rice", "flag": False},
            {"from": "Boris", "subject": "rent", "body": "beans", "flag": True},
        ],
        "Sent": [],
        "Trash": [],
    },
    "conf": {
        "Wifi": False, "VPN": True, "Hotspot": False, "Flight": False, "Mute": False, "Theme": "Light",
        "Text": "Small", "Volume": 30, "Name": "Clara", "Lang": "English",
    },
    "calc": {"A1": 3, "A2": 4, "B1": 10},
    "orders": [],
}  # fmt: skip


def desk(*apps: str) -> Desktop:
    """A desktop with these applications open at (4, 1), the last one in front."""
    desktop = Desktop(copy.deepcopy(WORLD), APPS)
    for app in apps:
        desktop.launch(app)
    return desktop


def find(desktop: Desktop, label: str, kind: str = "") -> Element:
    """The last visible element with this label, in reading order."""
    found = [
        element
        for element in desktop.visible_elements()
        if element.label == label and (not kind or element.kind == kind)
    ]
    assert found, f"no visible {kind or 'element'} {label!r}"
    return found[-1]


def click(desktop: Desktop, *labels: str, kind: str = "") -> None:
    for label in labels:
        desktop.click(*find(desktop, label, kind).centre)


def cell(desktop: Desktop, name: str) -> tuple[int, int]:
    """The centre of a sheet's cell, in layout units."""
    front = desktop.front
    assert front is not None
    column, row = front.column + 4 + 4 * "ABCD".index(name[0]), front.row + 2 + int(name[1])
    return 7 * column, 14 * row + 7


def titles(desktop: Desktop) -> list[str]:
    return [window.title for window in desktop.windows]


def task_of(raw: dict[str, Any]) -> Task:
    return Task(
        id=raw["id"],
        instruction=raw["instruction"],
        snapshot=raw["snapshot"],
        config=tuple(raw["config"]),
        evaluator=raw["evaluator"],
    )


def solution(task: Task, desktop: Desktop | None = None, max_steps: int = 60) -> list[tuple[str, Action]]:
    """The solver's thoughts and actions, from the initial state or from `desktop`."""
    desktop = set_up(task) if desktop is None else desktop
    goals = from_json(task.evaluator["solution"])
    steps = []
    for _ in range(max_steps):
        step = next_step(desktop, goals)
        steps.append((step.thought, step.action))
        perform(desktop, step.action)
        if isinstance(step.action, Finished | Fail):
            return steps
    raise AssertionError(f"{task.instruction!r} is not solved in {max_steps} steps")


def score(task: Task, desktop: Desktop, last: Action) -> float:
    return task_score(task, desktop.world, last)
