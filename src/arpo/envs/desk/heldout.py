"""Goal families and applications outside of all generated training tasks, and sets of tasks with them.

Evaluation on them shows what training on other tasks has taught. The shipped lists desk:32, desk:128 and
desk:pool contain them. The sets have three levels: "desk:instances/validation", "desk:families/test", …

    instances     goal families and applications of desk:fresh
    families      every task has a goal of a held-out family, in applications of desk:fresh
    applications  every task has a goal in a held-out application

Half of the tasks have one goal, half have two. Every half of a level has seeds of its own, which neither
desk:fresh nor pretraining uses. The solver finishes every task within the default of `rollout.max_steps`.
"""

from __future__ import annotations

from functools import cache

from arpo.config import RolloutConfig
from arpo.config.task_set_names import GENERATED
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

SIZE = 128
# By level: the families of which every task has one, and the applications with windows.
_LEVELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "instances": (TRAINING_FAMILIES, TRAINING_APPLICATIONS),
    "families": (HELDOUT_FAMILIES, TRAINING_APPLICATIONS),
    "applications": (APPLICATION_FAMILIES, tuple(APPS)),
}


@cache
def heldout_tasks(source: str) -> tuple[Task, ...]:
    """The tasks of a source in GENERATED, for example "desk:families/validation"."""
    name = GENERATED[source]
    own, apps = _LEVELS[name.partition("_")[0]]
    families = tuple(dict.fromkeys((*TRAINING_FAMILIES, *own)))
    mixes = [
        [mix for mix in combinations_of(families, goals) if not set(own).isdisjoint(mix)] for goals in (1, 2)
    ]
    tasks: list[Task] = []
    seed = 0
    while len(tasks) < SIZE:
        rng = rng_for(name, seed)
        seed += 1
        chosen = rng.choice(mixes[len(tasks) % 2])
        goals = [FAMILIES[family] for family in rng.sample(chosen, len(chosen))]
        raw = random_task(rng, goals, f"{name}-{len(tasks):03d}", apps)
        if solution_length(raw) <= RolloutConfig().max_steps:
            tasks.append(to_task(raw))
    return tuple(tasks)
