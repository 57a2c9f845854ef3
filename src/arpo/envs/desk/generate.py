"""Writes Desk's shipped task lists: `python -m arpo.envs.desk.generate FOLDER` makes pool.json and heldout.json.

The pool is to Desk what OSWorld's 369 tasks are to a desktop: some short, many that ask for several things at
once, some that cannot be done. The held-out tasks are made the same way from seeds of their own.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from arpo.envs.desk.goals import FEASIBLE, INFEASIBLE, compatible
from arpo.envs.desk.invent import invent_task, rng_for

# How many tasks of each length: goals asked for -> number of tasks; 0 stands for one that cannot be done.
POOL = {0: 15, 1: 154, 2: 50, 3: 75, 4: 75}
HELDOUT = {0: 5, 1: 88, 2: 35}


def make_tasks(purpose: str, numbers: dict[int, int]) -> list[dict[str, Any]]:
    """Single goals go through the families in turn; longer ones are drawn. Each is on a desktop of its own."""
    tasks: list[dict[str, Any]] = []
    for length, count in numbers.items():
        for number in range(count):
            rng = rng_for(purpose, len(tasks))
            tasks.append(invent_task(rng, _families(rng, length, number), f"{purpose}-{len(tasks):03d}"))
    return tasks


def _families(rng: random.Random, length: int, number: int) -> list[type[Any]]:
    if length <= 1:
        families = list((FEASIBLE if length else INFEASIBLE).values())
        return [families[number % len(families)]]
    while True:
        drawn = rng.sample(list(FEASIBLE.values()), length)
        if compatible(drawn):
            return drawn


def main(folder: Path) -> None:
    for purpose, numbers in (("pool", POOL), ("heldout", HELDOUT)):
        lines = [json.dumps(task, separators=(",", ":")) for task in make_tasks(purpose, numbers)]
        (folder / f"{purpose}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
