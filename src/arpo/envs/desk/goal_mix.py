"""The goal families of generated tasks: which may occur, and how a task draws its own."""

from __future__ import annotations

import random
from collections.abc import Sequence

from arpo.config.recipe import nearest
from arpo.envs.desk.goals import FAMILIES, combinations_of
from arpo.envs.desk.heldout import HELDOUT_APPLICATIONS, TRAINING_APPLICATIONS, TRAINING_FAMILIES
from arpo.errors import UserError

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
