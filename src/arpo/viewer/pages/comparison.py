"""Page "Comparison": the runs in one folder of `arpo compare`."""

from __future__ import annotations

from collections.abc import Sequence

from arpo.comparison.methods import COLLECTED, choose_baseline
from arpo.comparison.results import BASE, RunResult, compare_runs, run_result
from arpo.comparison.tables import page_json
from arpo.errors import UserError
from arpo.tasks.screened import Count
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json


def comparison_page(sources: Sequence[RunSource], against: str | None) -> Json:
    """`sources`: all runs in the folder, with collected episodes. `against`: the baseline."""
    collected = {one.identity.seed: one for one in sources if one.identity.method == COLLECTED}
    runs = [one for one in sources if one.identity.method not in (BASE, COLLECTED)]
    if not runs:
        raise UserError("there are no runs to compare yet")
    counts: dict[str, Count] = {}
    for one in runs:
        counts |= one.texts.screening_counts()
    results = [_result(one, collected.get(one.identity.seed)) for one in runs]
    names = sorted({run.method for run in results})
    baseline = choose_baseline(against, [BASE, *names])
    names.sort(key=lambda name: name != baseline)
    seeds = range(1 + max(run.seed for run in results))
    return page_json(compare_runs(results, dict.fromkeys(names, seeds), baseline, counts), results)


def _result(run: RunSource, collected: RunSource | None) -> RunResult:
    """A run in a comparison. `collected`: the episodes of its seed, if an offline method may use them."""
    assert run.identity.method is not None and run.identity.seed is not None
    offline = collected if run.config.train.method != "online" else None
    return run_result(
        run.identity.method,
        run.identity.seed,
        run.config,
        summary=run.summary,
        metrics=run.metrics.rows,
        timing=run.timing.rows,
        evaluations=run.evaluations(),
        collection_seconds=sum(row.get("rollout") or 0.0 for row in offline.timing.rows) if offline else 0.0,
    )
