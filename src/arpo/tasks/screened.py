"""Tasks selected by screening: the base model's counts, which tasks stay, and the result that is written.

Pure: no file, no clock.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Successes of the base model on one task in screening."""

    successes: int
    rollouts: int

    @property
    def rate(self) -> float:
        """Smoothed success rate, (successes + 0.5) / (rollouts + 1): never exactly 0 or 1."""
        return (self.successes + 0.5) / (self.rollouts + 1)


def learnable(counts: Mapping[str, Count], *, drop_always: bool) -> dict[str, Count]:
    """The tasks solved at least once and, with `drop_always`, not every time."""
    return {
        task: count
        for task, count in counts.items()
        if count.successes >= 1 and not (drop_always and count.successes == count.rollouts)
    }


def middle(counts: Mapping[str, Count], number: int) -> dict[str, Count]:
    """The `number` tasks with success rates nearest to 1/2, in the order of `counts`.

    Tasks solved never or always are left out, so there may be fewer. Of two tasks at the same distance, the
    harder one is taken: its rate rises through 1/2 in training. Then the earlier one. Example: of 0, 1, 2, 3
    and 4 successes in 4 rollouts, the two nearest are 2 and 1.
    """

    def distance(task: str) -> tuple[Fraction, Fraction]:
        rate = Fraction(counts[task].successes, counts[task].rollouts)
        return abs(rate - Fraction(1, 2)), rate

    sometimes = [task for task, count in counts.items() if 0 < count.successes < count.rollouts]
    nearest = set(sorted(sometimes, key=distance)[:number])
    return {task: count for task, count in counts.items() if task in nearest}


def format_selection(source: str, kept: Mapping[str, Count], examples: str = "") -> str:
    """Return the text of a selection file. Its paths must be relative to the folder of the file."""
    tasks = {task: {"successes": n.successes, "rollouts": n.rollouts} for task, n in kept.items()}
    content = {"source": source} | ({"examples": examples} if examples else {}) | {"tasks": tasks}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
