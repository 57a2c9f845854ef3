"""Tasks without end: `tasks.train = "desk:fresh"` makes each task when it is played.

The id of a task determines it: "fresh-7-123-SetTheme+DeleteMail" is task 123 of seed 7 with these goals. So
stored episodes need no task file. Candidates that take the solver too many steps are skipped:
"fresh-7-123.2-…" is the third candidate for task 123.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, overload

from arpo.config import FRESH
from arpo.config.recipe import nearest
from arpo.envs.desk.goals import FAMILIES, combinations_of, compatible
from arpo.envs.desk.heldout import HELDOUT_APPLICATIONS, TRAINING_APPLICATIONS, TRAINING_FAMILIES
from arpo.envs.desk.random_tasks import random_task, solution_length, to_task
from arpo.errors import UserError
from arpo.types import Task

_NUMBER = "(?:0|[1-9][0-9]{0,9})"  # as `str` writes it: 07 is none
_ID = re.compile(rf"fresh-({_NUMBER})-({_NUMBER}(?:\.[1-9][0-9]?)?)-([A-Za-z+]{{1,200}})")
_MAX_CANDIDATES = 100
MAX_GOALS = 3


class GoalMix:
    """Combinations of families by number of goals.

    A number that occurs twice in `goals` is drawn twice as often: (1, 1, 2) gives two tasks of one goal for
    each task of two. An infeasible goal is always alone.
    """

    def __init__(self, families: Sequence[str], goals: Sequence[int]) -> None:
        self._goals = tuple(goals)
        self._combinations = {number: combinations_of(families, number) for number in sorted(set(goals))}
        for number, found in self._combinations.items():
            if not found:
                raise UserError(
                    f"tasks.goals: no {number} of these families fit together in one task: "
                    f"{', '.join(families)}. Use fewer goals, or families of more applications"
                )

    def draw(self, rng: random.Random) -> tuple[str, ...]:
        """Families in random order. First the number of goals is drawn, then one of its combinations."""
        (number,) = rng.choices(self._goals)
        (drawn,) = rng.choices(self._combinations[number])
        return tuple(rng.sample(drawn, number))


def open_goal_mix(families: str, goals: str, domains: str = "") -> GoalMix:
    """The mix of tasks.families, tasks.goals and tasks.domains: lists separated by commas; "" means all.

    Raises UserError for an unknown or held-out name, and if nothing is left.
    """
    chosen = _names(families, "tasks.families", TRAINING_FAMILIES, tuple(FAMILIES))
    apps = _names(
        domains, "tasks.domains", TRAINING_APPLICATIONS, (*TRAINING_APPLICATIONS, *HELDOUT_APPLICATIONS)
    )
    left = [name for name in chosen if FAMILIES[name].app in apps]
    if not left:
        raise UserError("tasks.families: none of these is in tasks.domains: remove one of the two settings")
    return GoalMix(left, _numbers(goals))


def _names(text: str, key: str, allowed: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    names = _split(text)
    for name in names:
        if name not in known:
            raise UserError(f"{key}: no {name!r}{nearest(name, list(allowed))}")
        if name not in allowed:
            raise UserError(
                f"{key}: {name} is held out, so desk:fresh never has it; it has: {', '.join(allowed)}"
            )
    return tuple(dict.fromkeys(names)) or tuple(allowed)


def _numbers(text: str) -> list[int]:
    numbers = _split(text)
    allowed = [str(number) for number in range(1, MAX_GOALS + 1)]
    if not numbers or not set(numbers) <= set(allowed):
        raise UserError(
            f"tasks.goals: is {text!r}, must be numbers from 1 to {MAX_GOALS}, separated by commas, such as "
            '"1,2"'
        )
    return [int(number) for number in numbers]


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


class FreshTasks(Sequence[Task]):
    """`count` tasks of one seed. Each access makes a task; none is kept. Slices are lists.

    If `endless` is true, a run plays each task once: task n is the one of its visit n.
    """

    def __init__(self, mix: GoalMix, *, seed: int, count: int, max_steps: int, endless: bool) -> None:
        self._mix, self._seed, self._count, self._max_steps = mix, seed, count, max_steps
        self.endless = endless
        self._excluded: frozenset[str] = frozenset()

    def without(self, tasks: Iterable[Task]) -> FreshTasks:
        """The same tasks without candidates with the content of one of `tasks`."""
        others = copy(self)
        others._excluded = frozenset(task.content for task in tasks)
        return others

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        numbers = range(self._count)[index]
        return (
            [self._make(number) for number in numbers] if isinstance(numbers, range) else self._make(numbers)
        )

    def _make(self, number: int) -> Task:
        """Task `number`. Raises UserError if every candidate takes the solver more than `max_steps` steps."""
        for candidate in range(_MAX_CANDIDATES):
            label = f"{number}.{candidate}" if candidate else str(number)
            families = self._mix.draw(random.Random(f"fresh-{self._seed}-{label}-families"))
            task = _raw_task(self._seed, label, families)
            if solution_length(task) <= self._max_steps and to_task(task).content not in self._excluded:
                return to_task(task)
        raise UserError(
            f"{FRESH}: {_MAX_CANDIDATES} candidates for task {number} take more than rollout.max_steps = "
            f"{self._max_steps} steps: raise it, or choose other tasks.families and tasks.goals"
        )


def fresh_task(task_id: str) -> Task | None:
    """The task of an id of desk:fresh; None for any other id."""
    match, families = _ID.fullmatch(task_id), fresh_families(task_id)
    if match is None or not families:
        return None
    return to_task(_raw_task(int(match[1]), match[2], families))


def fresh_families(task_id: str) -> tuple[str, ...]:
    """The goal families in an id of desk:fresh; () for any other id.

    >>> fresh_families("fresh-7-123-SetTheme+DeleteMail")
    ('SetTheme', 'DeleteMail')
    """
    match = _ID.fullmatch(task_id)
    families = tuple(match[3].split("+")) if match else ()
    known = set(families) <= set(TRAINING_FAMILIES)  # an id with a held-out family is not of desk:fresh
    return families if known and compatible([FAMILIES[family] for family in families]) else ()


def _raw_task(seed: int, label: str, families: Sequence[str]) -> dict[str, Any]:
    name = f"fresh-{seed}-{label}-{'+'.join(families)}"
    return random_task(
        random.Random(name), [FAMILIES[family] for family in families], name, TRAINING_APPLICATIONS
    )
