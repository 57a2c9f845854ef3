"""The ladder of pretraining: first words, then screens, then acting with care, then acting carelessly.

Each stage has its own mix of lessons. Carelessness comes last: the model first learns to solve tasks, and
then which faults the demonstrator makes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from arpo.envs.desk.desktop import Desktop
from tools.pretrain.reading import (
    Question,
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
}
PAGE, ACT = "page", "act"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """`lessons` and `goals` are relative frequencies. The stage ends at the share `until` of all updates."""

    name: str
    until: float
    lessons: Mapping[str, float]
    goals: tuple[float, float, float]  # tasks with one, two and three goals
    careless: bool = False


def _stage(name: str, until: float, shares: tuple[int, ...], goals: tuple[float, float, float]) -> Stage:
    lessons = dict(zip((PAGE, *QUESTIONS, ACT), shares, strict=True))
    return Stage(name=name, until=until, lessons=lessons, goals=goals, careless=name == "careless")


LADDER = (
    #                   until  page screen window kind at state point act     goals: one two three
    _stage("words",     0.20, (80,  5,     0,     5,   0, 0,    10,   0),     (4, 3, 1)),
    _stage("read",      0.40, (35,  15,    5,     15,  5, 5,    15,   5),     (4, 3, 1)),
    _stage("act",       0.70, (5,   10,    4,     8,   3, 6,    16,   48),    (4, 4, 2)),
    _stage("careless",  1.00, (2,   6,     2,     5,   2, 4,    12,   67),    (4, 4, 2)),
)  # fmt: skip


def stage_at(share: float) -> Stage:
    """The stage after this share of all updates, from 0 to 1."""
    return next((stage for stage in LADDER if share < stage.until), LADDER[-1])
