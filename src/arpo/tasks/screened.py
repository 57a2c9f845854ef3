"""The result of screening: the base model's counts, which tasks stay and why, and the files that say so.

Pure: no file, no clock.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

BAR = 40  # characters of the histogram's longest bar
NEVER, ALWAYS, FAILED, CANNOT = "never solved", "always solved", "failed", "cannot run here"
FARTHER = "farther from 50%"  # only with --count


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """The result of a screening.

    `counts` has the successes of each played task. `failed` has the first failure of each task without a
    played episode. `skipped` has the reason of each task not playable here. If `count` is above
    0, it is the number of tasks of medium difficulty to keep.
    """

    tasks: Sequence[str]
    settings: Mapping[str, Any]
    counts: Mapping[str, Count]
    failed: Mapping[str, str]
    skipped: Mapping[str, str]
    drop_always: bool
    count: int

    @property
    def kept(self) -> dict[str, Count]:
        in_order = {task: self.counts[task] for task in self.tasks if task in self.counts}
        if self.count:
            return middle(in_order, self.count)
        return learnable(in_order, drop_always=self.drop_always)

    @property
    def histogram(self) -> list[int]:
        """Number of tasks with 0, 1, … successes."""
        tasks = Counter(count.successes for count in self.counts.values())
        return [tasks[successes] for successes in range(self.settings["of"] + 1)]

    def dropped(self, task: str) -> tuple[str, str]:
        """Why a task is not kept: a category and a detail, for example ("failed", "step: timeout")."""
        if task in self.skipped:
            return CANNOT, self.skipped[task]
        if task in self.failed:
            return FAILED, self.failed[task]
        count = self.counts[task]
        if not count.successes:
            return NEVER, ""
        category = ALWAYS if count.successes == count.rollouts else FARTHER
        return category, "--count" if self.count else "--drop-always"

    def totals(self) -> dict[str, Any]:
        kept = self.kept
        reasons = Counter(self.dropped(task)[0] for task in self.tasks if task not in kept)
        categories = (NEVER, ALWAYS, FAILED, CANNOT, *([FARTHER] if self.count else []))
        return {
            "tasks": len(self.tasks),
            "kept": len(kept),
            "dropped": {category: reasons[category] for category in categories},
            "rollouts": sum(count.rollouts for count in self.counts.values()),
            "solved": _rate(self.counts),
            "solved_of_kept": _rate(kept),
        }

    def report(self) -> dict[str, Any]:
        """The content of OUT.report.json."""
        kept = self.kept
        rows: dict[str, dict[str, Any]] = {}
        for task in self.tasks:
            count = self.counts.get(task, Count(successes=0, rollouts=0))
            rows[task] = {"successes": count.successes, "rollouts": count.rollouts, "kept": task in kept}
            if task not in kept:
                category, detail = self.dropped(task)
                rows[task]["reason"] = f"{category}: {detail}" if detail else category
        return {
            "terms": dict(self.settings),
            "totals": self.totals(),
            "histogram": self.histogram,
            "tasks": rows,
        }

    def describe(self) -> list[str]:
        """Lines for the screen: rates, reasons, and a histogram of successes."""
        totals, histogram = self.totals(), self.histogram
        widest, most = len(str(len(histogram) - 1)), max(1, *histogram)
        bars = [
            f"{successes:>{widest}} {'█' * math.ceil(BAR * tasks / most)} {tasks}"
            for successes, tasks in enumerate(histogram)
        ]
        return [
            f"solved {totals['solved']:.1%} of all rollouts, {totals['solved_of_kept']:.1%} on the "
            f"{totals['kept']} tasks that are kept",
            "dropped: " + ", ".join(f"{count} {why}" for why, count in totals["dropped"].items()),
            f"tasks by successes in {len(histogram) - 1} rollouts:",
            *bars,
        ]


def _rate(counts: Mapping[str, Count]) -> float:
    return sum(c.successes for c in counts.values()) / max(1, sum(c.rollouts for c in counts.values()))
