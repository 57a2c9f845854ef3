"""Random worlds, windows and tasks from a seed.

The task pool, the held-out sets and the pretraining lessons each use seeds of their own (`SEEDS`), so they
share no task.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from typing import Any

from arpo.actions import TERMINAL
from arpo.envs.desk import words
from arpo.envs.desk.apps import APPS
from arpo.envs.desk.apps.files import ROOT
from arpo.envs.desk.env import perform, set_up
from arpo.envs.desk.goals import INFEASIBLE, Goal, from_json, next_step, to_json
from arpo.envs.desk.world import World
from arpo.types import Task

# First part of every seed.
SEEDS = {
    "pool": 1, "heldout": 2, "pretrain": 3,
    "instances_validation": 4, "instances_test": 5, "families_validation": 6, "families_test": 7,
    "applications_validation": 8, "applications_test": 9, "long_validation": 10, "long_test": 11,
}  # fmt: skip
_COLUMNS, _ROWS = (0, 2, 4, 6, 8), (0, 1, 2)


def rng_for(purpose: str, number: int) -> random.Random:
    return random.Random(f"desk-{SEEDS[purpose]}-{number}")


def random_world(rng: random.Random) -> World:
    names = iter(rng.sample(words.FILES, 12))
    folders = rng.sample(words.FOLDERS, rng.randint(1, 3))
    files = {ROOT: {next(names): rng.choice(words.TEXTS) for _ in range(rng.randint(2, 5))}}
    for folder in folders:
        files[folder] = {next(names): rng.choice(words.TEXTS) for _ in range(rng.randint(0, 2))}
    senders = rng.sample(words.PEOPLE, rng.randint(2, 5))
    inbox = [
        {
            "from": sender, "subject": rng.choice(words.SUBJECTS), "body": rng.choice(words.TEXTS),
            "flag": i > 0 and rng.random() < 0.25,
        }
        for i, sender in enumerate(senders)
    ]  # fmt: skip
    conf: dict[str, Any] = {name: rng.random() < 0.5 for name in (*words.SWITCHES, "Mute")}
    conf |= {
        "Theme": rng.choice(words.THEMES), "Text": rng.choice(words.SIZES), "Volume": 10 * rng.randint(0, 10),
        "Name": rng.choice(words.PEOPLE), "Lang": rng.choice(words.LANGUAGES),
    }  # fmt: skip
    cells = rng.sample([f"{c}{r}" for c in "ABCD" for r in range(1, 5)], rng.randint(3, 6))
    return {
        "files": files,
        "mail": {"In": inbox, "Sent": [], "Trash": []},
        "conf": conf,
        "calc": {cell: rng.randint(1, 60) for cell in cells},
        "orders": [],
    }


def random_windows(
    rng: random.Random, app: str, max_windows: int = 3, apps: Iterable[str] = APPS
) -> list[dict[str, Any]]:
    """Initial windows of some of `apps`, back to front. With probability 1/2, `app` is in front."""
    others = rng.sample([name for name in apps if name != app], rng.randint(0, max_windows - 1))
    open_apps = [*others, app] if rng.random() < 0.5 else others
    return [{"app": name, "column": rng.choice(_COLUMNS), "row": rng.choice(_ROWS)} for name in open_apps]


def random_task(
    rng: random.Random, families: Sequence[type[Any]], task_id: str, apps: Iterable[str] = APPS
) -> dict[str, Any]:
    """A task in OSWorld's schema with one goal of each family, in this order. Only `apps` have windows."""
    world = random_world(rng)
    final = copy.deepcopy(world)
    goals: list[Goal] = []
    for family in families:
        goal = family.sample(rng, final)
        goal.apply(final)
        goals.append(goal)
    windows = random_windows(rng, goals[0].app, apps=apps)
    infeasible = any(type(goal).__name__ in INFEASIBLE for goal in goals)
    changed = {part: final[part] for part in world if final[part] != world[part]}
    evaluator = (
        {"func": "infeasible"}
        if infeasible
        else {
            "func": "desk_state",
            "result": {"type": "desk_world"},
            "expected": {"type": "rule", "rules": changed},
        }
    )
    return {
        "id": task_id,
        "snapshot": "+".join(type(goal).__name__ for goal in goals),
        "instruction": ", then ".join(goal.instruction for goal in goals),
        "config": [
            {"type": "world", "parameters": world},
            *({"type": "open", "parameters": window} for window in windows),
        ],
        "related_apps": list(dict.fromkeys(goal.app for goal in goals)),
        "evaluator": {**evaluator, "solution": to_json(goals)},
    }


def to_task(raw: dict[str, Any]) -> Task:
    """A task of `random_task`, typed. Its domain is the application of its first goal."""
    apps = tuple(raw["related_apps"])
    return Task(**raw | {"config": tuple(raw["config"]), "related_apps": apps, "domain": apps[0]})


def solution_length(task: dict[str, Any]) -> int:
    """Number of the solver's steps, including the terminal one."""
    desktop = set_up(Task(**task | {"config": tuple(task["config"]), "related_apps": ()}))
    goals = from_json(task["evaluator"]["solution"])
    length = 0
    while True:
        length += 1
        action = next_step(desktop, goals).action
        perform(desktop, action)
        if isinstance(action, TERMINAL):
            return length
