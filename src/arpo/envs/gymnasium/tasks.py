"""Tasks of Gymnasium and BrowserGym: an environment's id and a seed.

    tasks.train = "gymnasium:my_games:Maze-v0"
    tasks.heldout = "browsergym:heldout/miniwob.click-test-2,miniwob.click-dialog"

A task file may name them, too, with arguments of gymnasium.make and options of reset:

    "config": [{"type": "gymnasium", "parameters": {"id": "Maze-v0", "seed": 3, "make": {"size": 9}}}]
"""

from __future__ import annotations

import re
from typing import Any

from arpo.envs.browser.miniwob import HELDOUT, HELDOUT_SEEDS, TRAIN_SEEDS
from arpo.errors import UserError
from arpo.types import Task

STEP = "gymnasium"  # type of the set-up step of both kinds
_WITHOUT_SEEDS = ("webarena", "visualwebarena", "assistantbench")  # a task is one instance
_DEFAULTS: dict[str, Any] = {"id": "", "seed": 0, "make": {}, "options": {}}
_WANTED = {str: "a text", int: "a whole number", dict: "an object"}


def gymnasium_tasks(source: str) -> list[Task]:
    """The instances of a list: those of all its environments with one seed, then with the next seed."""
    prefix, _, text = source.partition(":")
    ids = list(filter(None, map(str.strip, text.removeprefix(HELDOUT).split(","))))
    if not ids:
        raise UserError(f'{source}: name environments, such as "{prefix}:ID" or "{prefix}:{HELDOUT}ID,ID"')
    seeds = HELDOUT_SEEDS if text.startswith(HELDOUT) else TRAIN_SEEDS
    fixed = [name for name in ids if prefix == "browsergym" and name.startswith(_WITHOUT_SEEDS)]
    seeded = [name for name in ids if name not in fixed]
    return [_task(name, 0) for name in fixed] + [_task(name, seed) for seed in seeds for name in seeded]


def _task(name: str, seed: int) -> Task:
    domain = re.sub(r"[^\w.-]", "-", name.rpartition(":")[2])  # becomes a file name
    return Task(
        id=f"{domain}-{seed}",
        instruction=f"{name}, seed {seed}",
        snapshot="",
        config=({"type": STEP, "parameters": {"id": name, "seed": seed}},),
        evaluator={},
        domain=domain,
    )


def read_task(task: Task, default_id: str) -> dict[str, Any]:
    """id, seed, make and options of the environment. Raises UserError with the place of a mistake."""
    given: dict[str, Any] = {}
    for number, step in enumerate(task.config):
        place = f"task {task.id}: config[{number}]"
        if step.get("type") != STEP or not isinstance(step.get("parameters"), dict) or number:
            raise UserError(f'{place}: must be the only step, {{"type": "{STEP}", "parameters": {{…}}}}')
        given = step["parameters"]
        for key, value in given.items():
            if key not in _DEFAULTS:
                raise UserError(f"{place}: unknown key {key!r}; the keys are: {', '.join(_DEFAULTS)}")
            if type(value) is not (kind := type(_DEFAULTS[key])):
                raise UserError(f"{place}.{key}: must be {_WANTED[kind]}, not {value!r}")
    return {**_DEFAULTS, "id": default_id, **given}
