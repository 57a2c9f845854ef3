"""The page "Comparison" of the runs in one folder of `arpo compare`, as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from arpo.comparison.methods import choose_baseline
from arpo.comparison.results import BASE, RunResult, compare_runs
from arpo.comparison.tables import page_json
from arpo.tasks.screened import Count


def comparison_page(
    runs: Sequence[RunResult], counts: Mapping[str, Count], against: str | None
) -> dict[str, Any]:
    """`counts`: screening counts of the training tasks. `against`: the baseline; None: the base model."""
    names = sorted({run.method for run in runs})
    baseline = choose_baseline(against, [BASE, *names])
    names.sort(key=lambda name: name != baseline)
    seeds = range(1 + max(run.seed for run in runs))
    return page_json(compare_runs(runs, dict.fromkeys(names, seeds), baseline, counts), runs)
