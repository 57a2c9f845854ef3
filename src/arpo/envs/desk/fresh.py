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
from arpo.envs.desk.goal_mix import GoalMix
from arpo.envs.desk.goals import FAMILIES, compatible
from arpo.envs.desk.heldout import TRAINING_APPLICATIONS, TRAINING_FAMILIES
from arpo.envs.desk.random_tasks import random_task, solution_length, to_task
from arpo.errors import UserError
from arpo.types import Task

_NUMBER = "(?:0|[1-9][0-9]{0,9})"  # as `str` writes it: 07 is none
_ID = re.compile(rf"fresh-({_NUMBER})-({_NUMBER}(?:\.[1-9][0-9]?)?)-([A-Za-z+]{{1,200}})")
_MAX_CANDIDATES = 100


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
