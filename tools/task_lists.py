"""Writes Desk's shipped task lists, pool.json and heldout.json: `python -m tools.task_lists FOLDER`.

The pool has 369 tasks, like OSWorld: some short, most with several targets to find on the screen, some
infeasible. Held-out tasks come from other seeds. The solver finishes every task within `rollout.max_steps`.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arpo.config import RolloutConfig
from arpo.envs.desk.goals import FEASIBLE, INFEASIBLE, compatible
from arpo.envs.desk.goals.files import DeleteFile, MoveFile, RenameFile, ReplaceText
from arpo.envs.desk.goals.mail import AnswerMail, DeleteMail, FlagMail, SendFileText, SendMail
from arpo.envs.desk.goals.sheet import CopyValue, PutValue
from arpo.envs.desk.random_tasks import random_task, rng_for, solution_length

Family = type[Any]

# The position to click depends on the world: a list row, a sheet cell, a text to read first.
VARIABLE_TARGET: tuple[Family, ...] = (
    DeleteFile, MoveFile, RenameFile, ReplaceText, SendMail, AnswerMail, DeleteMail, FlagMail, SendFileText,
    PutValue, CopyValue,
)  # fmt: skip
FIXED_TARGET: tuple[Family, ...] = tuple(
    family for family in FEASIBLE.values() if family not in VARIABLE_TARGET
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """`tasks` tasks of `goals` goals each. A single goal cycles through `families`; several are drawn."""

    tasks: int
    goals: int
    families: tuple[Family, ...]


POOL = (
    Portion(tasks=15, goals=1, families=tuple(INFEASIBLE.values())),
    Portion(tasks=66, goals=1, families=tuple(FEASIBLE.values())),
    Portion(tasks=22, goals=1, families=VARIABLE_TARGET),
    Portion(tasks=25, goals=2, families=FIXED_TARGET),
    Portion(tasks=20, goals=3, families=FIXED_TARGET),
    Portion(tasks=221, goals=3, families=VARIABLE_TARGET),
)
HELDOUT = (
    Portion(tasks=6, goals=1, families=tuple(INFEASIBLE.values())),
    Portion(tasks=66, goals=1, families=tuple(FEASIBLE.values())),
    Portion(tasks=16, goals=2, families=FIXED_TARGET),
    Portion(tasks=40, goals=2, families=VARIABLE_TARGET),
)


def make_tasks(purpose: str, portions: tuple[Portion, ...]) -> Iterator[dict[str, Any]]:
    """Tasks with one seed each. Skips tasks that take too many steps."""
    seed = made = 0
    for portion in portions:
        number = 0
        while number < portion.tasks:
            rng = rng_for(purpose, seed)
            seed += 1
            task = random_task(rng, _families(rng, portion, number), f"{purpose}-{made:03d}")
            if solution_length(task) <= RolloutConfig().max_steps:
                yield task
                number += 1
                made += 1


def _families(rng: random.Random, portion: Portion, number: int) -> list[Family]:
    if portion.goals == 1:
        return [portion.families[number % len(portion.families)]]
    while True:
        drawn = rng.sample(portion.families, portion.goals)
        if compatible(drawn):
            return drawn


def main(folder: Path) -> None:
    for purpose, portions in (("pool", POOL), ("heldout", HELDOUT)):
        lines = [json.dumps(task, separators=(",", ":")) for task in make_tasks(purpose, portions)]
        (folder / f"{purpose}.json").write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
