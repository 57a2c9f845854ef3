"""Goal families and applications outside of all generated training tasks, and sets of tasks with them.

Evaluation on them shows what training on other tasks has taught. The shipped lists desk:32, desk:128 and
desk:pool contain them. The sets have four levels: "desk:instances/validation", "desk:families/test", …

    instances     goal families and applications of desk:fresh
    families      every task has a goal of a held-out family, in applications of desk:fresh
    applications  every task has a goal in a held-out application
    long          as instances, with two or three goals in at least two applications

Half of the tasks have one goal, half have two; of the long ones, half have two, half three. Every half of a
level has seeds of its own, which neither desk:fresh nor pretraining uses. The solver finishes every task
within the default of `rollout.max_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from arpo.config import RolloutConfig
from arpo.config.task_set_names import GENERATED, QUICK
from arpo.envs.desk.apps import APPS
from arpo.envs.desk.goals import FAMILIES, combinations_of
from arpo.envs.desk.random_tasks import random_task, rng_for, solution_length, to_task
from arpo.types import Task

HELDOUT_FAMILIES = ("SetLanguage", "RenameFile", "ReplaceText", "AnswerMail")  # of four applications
HELDOUT_APPLICATIONS = ("Calc",)

TRAINING_APPLICATIONS = tuple(app for app in APPS if app not in HELDOUT_APPLICATIONS)
TRAINING_FAMILIES = tuple(
    name
    for name, family in FAMILIES.items()
    if family.app in TRAINING_APPLICATIONS and name not in HELDOUT_FAMILIES
)
# Families of the held-out applications.
APPLICATION_FAMILIES = tuple(name for name, family in FAMILIES.items() if family.app in HELDOUT_APPLICATIONS)

SIZE, QUICK_SIZE = 128, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    own: tuple[str, ...]  # families of which every task has one
    apps: tuple[str, ...] = TRAINING_APPLICATIONS  # those with windows
    goals: tuple[int, int] = (1, 2)  # of one half of the tasks, and of the other
    min_apps: int = 1

    def mixes(self, goals: int) -> list[tuple[str, ...]]:
        """The combinations of so many families."""
        families = tuple(dict.fromkeys((*TRAINING_FAMILIES, *self.own)))
        return [
            mix
            for mix in combinations_of(families, goals)
            if not set(self.own).isdisjoint(mix)
            and len({FAMILIES[family].app for family in mix}) >= self.min_apps
        ]


_LEVELS = {
    "instances": _Level(own=TRAINING_FAMILIES),
    "families": _Level(own=HELDOUT_FAMILIES),
    "applications": _Level(own=APPLICATION_FAMILIES, apps=tuple(APPS)),
    "long": _Level(own=TRAINING_FAMILIES, goals=(2, 3), min_apps=2),
}


@cache
def heldout_tasks(source: str) -> tuple[Task, ...]:
    """The tasks of a source in GENERATED, for example "desk:families/validation"."""
    name = GENERATED[source]
    level = _LEVELS[name.partition("_")[0]]
    mixes = [level.mixes(goals) for goals in level.goals]
    tasks: list[Task] = []
    seed = 0
    while len(tasks) < (QUICK_SIZE if source.endswith(QUICK) else SIZE):
        rng = rng_for(name, seed)
        seed += 1
        chosen = rng.choice(mixes[len(tasks) % 2])
        goals = [FAMILIES[family] for family in rng.sample(chosen, len(chosen))]
        raw = random_task(rng, goals, f"{name}-{len(tasks):03d}", level.apps)
        if solution_length(raw) <= RolloutConfig().max_steps:
            tasks.append(to_task(raw))
    return tuple(tasks)
