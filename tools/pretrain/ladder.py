"""The ladder of pretraining: first words, then screens, then acting with care, then acting carelessly.

Each stage has its own mix of lessons. Carelessness comes last: the model first learns to solve tasks, and
then which faults the demonstrator makes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from arpo.envs.desk.desktop import Desktop
from tools.pretrain.reading import (
    Question,
    find,
    point,
    read_kind,
    read_point,
    read_screen,
    read_state,
    read_window,
)

QUESTIONS: dict[str, Callable[[random.Random, Desktop], Question | None]] = {
    "screen": read_screen,
    "window": read_window,
    "kind": read_kind,
    "at": read_point,
    "state": read_state,
    "point": point,
    "find": find,
}
PAGE, SEARCH, ACT, JUDGE = "page", "search", "act", "judge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`lessons` and `goals` are relative frequencies. The stage ends at the share `until` of all updates."""

    name: str
    until: float
    lessons: dict[str, float]
    goals: tuple[float, float, float]  # tasks with one, two and three goals
    careless: bool = False


def _stage(name: str, until: float, shares: tuple[int, ...], goals: tuple[float, float, float]) -> Stage:
    lessons = dict[str, float](zip((PAGE, SEARCH, *QUESTIONS, ACT), shares, strict=True))
    return Stage(name=name, until=until, lessons=lessons, goals=goals, careless=name == "careless")


LADDER = (
    #                   until  page search screen window kind at state point find act    goals: one two three
    _stage("words",     0.15, (55,  25,    5,     0,     5,   0, 0,    8,    2,   0),    (4, 3, 1)),
    _stage("read",      0.38, (14,  24,    7,     3,     7,   3, 8,    20,   10,  4),    (4, 3, 1)),
    _stage("act",       0.77, (3,   8,     5,     2,     4,   2, 8,    14,   6,   48),   (4, 4, 2)),
    _stage("careless",  1.00, (2,   5,     4,     2,     4,   2, 6,    9,    4,   62),   (4, 4, 2)),
)  # fmt: skip
CARELESS = LADDER[-1]
# In place of the last stage, for a judge: it does not act.
JUDGING = replace(
    CARELESS, name="judge", lessons=CARELESS.lessons | {ACT: 0, JUDGE: 100}, goals=(3, 2, 0), careless=False
)


def stage_at(share: float, last: Stage) -> Stage:
    """The stage after this share of all updates, from 0 to 1. `last`: the last stage."""
    return next((stage for stage in LADDER[:-1] if share < stage.until), last)
