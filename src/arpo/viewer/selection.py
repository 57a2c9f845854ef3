"""Chooses the episodes of the report: by default the same tasks before and after training.

`arpo report --episodes` chooses others. All choices are deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from arpo.config.checks import shorten
from arpo.config.recipe import nearest
from arpo.errors import UserError
from arpo.reporting.display import count_noun
from arpo.storage.codec import EVALUATED
from arpo.types import StopReason
from arpo.viewer.played import Played, by_task

OPTION = "--episodes"
PAIRS = "before-after"
PER_ITEM = 6
KINDS: Mapping[str, Callable[[Played], bool]] = {
    "solved": lambda one: one.solved,
    "failed": lambda one: not one.solved,
    "replayed": lambda one: bool(one.replayed_in),
    "parse-errors": lambda one: one.stored.stop is StopReason.PARSE_ERROR,
}
# Preferred outcomes of a pair (solved before, solved after), in turn.
_OUTCOMES = ((False, True), (True, False), (False, True), (False, False))

Shown = tuple[Played, ...]  # one episode, or a task's episodes before and after


def choose_episodes(played: Sequence[Played], wanted: str = "") -> list[Shown]:
    """The episodes to show. `wanted` is the value of --episodes: items separated by commas; "": the default.

    The default is PER_ITEM tasks before and after. Without such tasks: first and last successes and failures.
    Raises UserError for an item that matches no episode.
    """
    available = [one for one in played if one.shown]
    if not wanted:
        return _choose_pairs(available, PER_ITEM) or [
            (one,)
            for name in ("solved", "failed")
            for one in _first_and_last([one for one in available if KINDS[name](one)], PER_ITEM)
        ]
    chosen: dict[tuple[str, ...], Shown] = {}
    for item in wanted.split(","):
        for shown in _matching(item.strip(), played, available):
            chosen.setdefault(tuple(one.id for one in shown), shown)
    return list(chosen.values())


def _matching(item: str, played: Sequence[Played], available: Sequence[Played]) -> list[Shown]:
    ids = {one.id: one for one in available}
    if item in ids:
        return [(ids[item],)]
    if any(one.id == item for one in played):
        raise UserError(
            f"{OPTION} {item}: its screenshots were deleted (store.prune_every): choose another episode"
        )
    if item.startswith("task:"):
        return [(one,) for one in _of_task(item, available)]
    name, count = _with_count(item)
    if name == PAIRS:
        found = _choose_pairs(available, count)
    elif name in KINDS:
        found = [(one,) for one in _first_and_last([one for one in available if KINDS[name](one)], count)]
    elif re.match(r"(batch|eval|collect)\d*-", item):
        raise UserError(f"{OPTION} {item}: no such episode{_nearest_or_some(item, list(ids))}")
    else:
        raise UserError(
            f"{OPTION} {shorten(item)}: unknown. Write an episode id, task:ID, {', '.join(KINDS)} or "
            f"{PAIRS}, for example failed:3"
        )
    if not found:
        raise UserError(f"{OPTION} {item}: no episode matches. {_inventory(played, available)}")
    return found


def _of_task(item: str, available: Sequence[Played]) -> list[Played]:
    """Episodes of "task:ID" or "task:ID:COUNT". An id may contain colons."""
    tasks = by_task(available)
    name, count = item.removeprefix("task:"), PER_ITEM
    if name not in tasks:
        name, count = _with_count(name)
    if name not in tasks:
        raise UserError(f"{OPTION} {item}: no episode of this task{_nearest_or_some(name, list(tasks))}")
    return _first_and_last(tasks[name], count)


def _with_count(item: str) -> tuple[str, int]:
    """Split "failed:3" into its parts."""
    name, found, number = item.rpartition(":")
    if not found:
        return item, PER_ITEM
    if not re.fullmatch(r"[1-9][0-9]{0,3}", number):
        raise UserError(
            f"{OPTION} {shorten(item)}: the number after the colon must be an integer from 1 to 9999"
        )
    return name, int(number)


def _nearest_or_some(name: str, names: Sequence[str]) -> str:
    if not names:
        return ": the run has no episodes with screenshots yet"
    close = nearest(name, names)
    return close if "did you mean" in close else f" (there are {len(names):,}: {', '.join(names[:3])}, …)"


def _inventory(played: Sequence[Played], available: Sequence[Played]) -> str:
    counts = ", ".join(f"{sum(map(test, available)):,} {name}" for name, test in KINDS.items())
    pruned = len(played) - len(available)
    deleted = f" {pruned:,} more have no screenshots (store.prune_every)." if pruned else ""
    tasks = count_noun(len(by_task(available)), "task")
    pairs = len(_pairs(available))
    return f"The run has episodes of {tasks}: {counts}; {pairs:,} tasks {PAIRS}.{deleted}"


def _first_and_last(played: Sequence[Played], count: int) -> list[Played]:
    """`count` episodes: the first half of them from the beginning of the run, the others from its end."""
    if len(played) <= count:
        return list(played)
    last = count // 2
    return [*played[: count - last], *played[len(played) - last :]]


def _pairs(available: Sequence[Played]) -> list[tuple[Played, Played]]:
    """The first and the last episode of each task, from evaluations if it was evaluated twice."""
    pairs = []
    for episodes in by_task(available).values():
        evaluated = [one for one in episodes if one.phase.startswith(EVALUATED)]
        compared = evaluated if len({one.phase for one in evaluated}) > 1 else episodes
        if len({one.phase for one in compared}) > 1:
            last = next(one for one in compared if one.phase == compared[-1].phase)
            pairs.append((compared[0], last))
    return pairs


def _choose_pairs(available: Sequence[Played], count: int) -> list[Shown]:
    """Pairs of different outcomes: tasks that the model learned, forgot, or still fails."""
    left: dict[tuple[bool, bool], list[Shown]] = {}
    for before, after in _pairs(available):
        left.setdefault((before.solved, after.solved), []).append((before, after))
    chosen: list[Shown] = []
    while len(chosen) < count and any(left.get(outcome) for outcome in _OUTCOMES):
        chosen += [left[outcome].pop(0) for outcome in _OUTCOMES if left.get(outcome)]
    return (chosen + left.get((True, True), []))[:count]
