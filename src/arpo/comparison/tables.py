"""Texts and tables of a comparison: the page in the browser, and lines for a terminal.

Figures are in percent and percentage points.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arpo.comparison.methods import describe_differences
from arpo.comparison.results import (
    BASE,
    SMOOTHING_WINDOW,
    STAGES,
    Comparison,
    Difference,
    MethodResult,
    RunResult,
    SeedStats,
)
from arpo.config.task_set_names import TRAIN, set_label
from arpo.reporting.display import count_noun, format_duration
from arpo.reporting.numbers import NO_VALUE, format_points

SIGNIFICANCE_LEVEL = 0.05
MIN_SEEDS = 3  # with two, a test has up to 13% false positives

DEFINITIONS = {
    "Difference": "Success rate minus that of the baseline, in points, on the same tasks and seeds.",
    "95% interval": (
        "Confidence interval of the difference for other seeds and other tasks of this kind. Its squared "
        "standard error is the sum of two: of the mean over seeds and of the mean over tasks (Student's t, "
        "degrees of freedom of Welch and Satterthwaite). With one seed, it is over tasks only."
    ),
    "p": (
        "Probability of a difference at least this far from zero if the method had no effect. It is below "
        "0.05 if and only if the interval excludes 0."
    ),
    "Corrected p": (
        "p for all differences of this table together (Holm). Tests outside this table, such as earlier "
        "trials, are not counted."
    ),
    "Result": (
        "Significant: the corrected p is below 0.05. Suggestive: only the uncorrected p is. No significant "
        "difference: neither is; the methods may still differ. Fewer than three seeds tell too little about "
        "other seeds: then the result is about these runs."
    ),
}
SUCCESS_NOTE = (
    "Success rate in percent: mean ± standard deviation over seeds, and the value of each seed. The success "
    "rate of one seed is the mean over tasks of the mean score of their rollouts. The base model is "
    "evaluated at the start of each run. Episodes: training episodes per run. Time: duration of one "
    "run; for offline methods it includes the collection of their episodes."
)
CURVE_NOTE = (
    "Mean over seeds against the number of training episodes; bands show the range over seeds. Evaluations "
    f"use new rollouts. All other curves are smoothed over {SMOOTHING_WINDOW} batches. Offline methods have "
    "all episodes from the start, so their curves have two points: before and after training."
)
TIME_NOTE = (
    "Mean over seeds; each run is one process. The total also includes loading, saving and collecting "
    "episodes, which belong to no stage."
)
SCREENED_NOTE = "Training tasks grouped by the number of times the base model solved them in screening."
EVALUATED_NOTE = (
    "Training tasks grouped by the number of times the base model solved them in its evaluations, because "
    "the task list has no screening counts. Part of the gain on the hardest tasks is regression to the mean."
)
CURVE_TITLES = {
    "sampled": "Success rate of training episodes",
    "without_signal": "Groups without signal",
    "rescued": "Groups rescued by replay",
    "replay_age": "Age of replayed successes, in batches",
}


Cell = tuple[str, str, float | None]  # value, detail in small print, success rate to show as a bar
Row = tuple[str, list[Cell]]  # method, cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    heads: list[str]  # without that of the methods
    rows: list[Row]


def cell(value: str, detail: str = "", share: float | None = None) -> Cell:
    return value, detail, share


def display_name(method: str) -> str:
    return "base model" if method == BASE else method


def page_json(comparison: Comparison, runs: Sequence[RunResult]) -> dict[str, Any]:
    """The page "Comparison" as JSON: sections with charts, a table, a note and definitions.

    Methods are indices into `methods`.
    """
    names = [row.name for row in comparison.rows]

    def table(found: Table) -> dict[str, Any]:
        rows = [{"method": names.index(name), "cells": cells} for name, cells in found.rows]
        return {"heads": found.heads, "rows": rows}

    sections: list[dict[str, Any]] = [
        {"title": "Success rate", "table": table(success_table(comparison)), "note": SUCCESS_NOTE}
    ]
    if comparison.differences:
        sections.append(
            {
                "title": f"Difference from {display_name(comparison.reference)}",
                "intervals": [_interval_chart(comparison, name, names) for name in comparison.task_sets],
                "table": table(difference_table(comparison)),
                "definitions": list(DEFINITIONS.items()),
            }
        )
    if curves := _curves(comparison, names):
        sections.append({"title": "Curves", "curves": curves, "note": CURVE_NOTE})
    if comparison.bins:
        note = SCREENED_NOTE if comparison.screened else EVALUATED_NOTE
        difficulty = table(_difficulty_table(comparison))
        sections.append({"title": "Success rate by task difficulty", "table": difficulty, "note": note})
    sections.append({"title": "Time", "table": table(_time_table(comparison)), "note": TIME_NOTE})
    if settings := _recipe_differences(comparison, runs):
        sections.append({"title": "Recipes", "text": settings})
    return {
        "title": f"Comparison of {len(names) - 1} recipes"
        if len(names) > 2
        else f"{names[1]} and base model",
        "subtitle": _subtitle(runs),
        "warning": missing_note(comparison),
        "methods": [display_name(name) for name in names],
        "baselines": [("", display_name(BASE)), *((name, name) for name in sorted(names[1:]))],
        "sections": sections,
    }


def _interval_chart(comparison: Comparison, task_set: str, names: Sequence[str]) -> dict[str, Any]:
    rows = [
        {"method": names.index(one.method), "mean": one.mean, "interval": one.interval}
        for one in comparison.differences
        if one.tasks == task_set
    ]
    return {"title": f"{set_label(task_set).capitalize()}: difference in percentage points", "rows": rows}


def _curves(comparison: Comparison, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "title": CURVE_TITLES.get(key, f"Success rate on {set_label(key)}, in evaluations"),
            "percent": key != "replay_age",
            "series": [
                {"method": names.index(name), "points": [[p.x, p.mean, p.low, p.high] for p in points]}
                for name, points in by_method.items()
            ],
        }
        for key, by_method in comparison.curves.items()
        if by_method
    ]


def success_table(comparison: Comparison) -> Table:
    sets = comparison.task_sets
    rows: list[Row] = []
    for row in comparison.rows:
        cells = [_percent_cell(row.success.get(task_set)) for task_set in sets]
        cells.append(_total_cell(row, "episodes", lambda value: f"{value:,.0f}"))
        cells.append(_total_cell(row, "seconds", format_duration))
        rows.append(
            (row.name, cells + [_group_share_cell(row, key) for key in ("without_signal", "rescued")])
        )
    heads = [*map(set_label, sets), "episodes", "time", "groups without signal", "groups rescued"]
    return Table(heads=heads, rows=rows)


def _percent_cell(stats: SeedStats | None) -> Cell:
    """Mean ± standard deviation, with the value of each seed as detail."""
    if stats is None:
        return cell(NO_VALUE)
    deviation = "" if stats.sd is None else f" ± {100 * stats.sd:.1f}"
    detail = _each_seed(f"{100 * value:.1f}" for value in stats.seeds.values())
    return cell(f"{100 * stats.mean:.1f}{deviation}", detail, stats.mean)


def _each_seed(values: Iterable[str]) -> str:
    found = list(values)
    return ", ".join(found) if len(found) > 1 else ""


def _total_cell(row: MethodResult, key: str, format_total: Callable[[float], str]) -> Cell:
    return cell(format_total(row.totals[key].mean) if key in row.totals else NO_VALUE)


def _group_share_cell(row: MethodResult, key: str) -> Cell:
    """Share of all groups, with the mean count over seeds as detail."""
    if not {key, "groups"} <= row.totals.keys() or not row.totals["groups"].mean:
        return cell(NO_VALUE)
    count, groups = row.totals[key].mean, row.totals["groups"].mean
    return cell(f"{100 * count / groups:.0f}%", f"{count:,.0f} of {groups:,.0f}")


def difference_table(comparison: Comparison) -> Table:
    rows: list[Row] = []
    for one in comparison.differences:
        cells = [
            cell(f"{set_label(one.tasks)} ({one.task_count})"),
            cell(format_points(one.mean), _each_seed(map(format_points, one.by_seed.values()))),
            cell(" to ".join(map(format_points, one.interval)) if one.interval else NO_VALUE),
        ]
        texts = (_format_p(one.p), _format_p(one.corrected_p), significance(one))
        rows.append((one.method, cells + list(map(cell, texts))))
    return Table(heads=["tasks", "difference", "95% interval", "p", "corrected p", "result"], rows=rows)


def _format_p(p: float) -> str:
    if p < 0.0001:
        return "<0.0001"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.001 else f"{p:.4f}"


def significance(one: Difference) -> str:
    """The result of the test in words, as in DEFINITIONS."""
    side = "higher" if one.mean > 0 else "lower"
    if one.p >= SIGNIFICANCE_LEVEL:
        return "no significant difference"
    if len(one.by_seed) < MIN_SEEDS:
        return f"{side} in these runs; too few seeds ({len(one.by_seed)})"
    if one.corrected_p >= SIGNIFICANCE_LEVEL:
        return f"suggestive: {side}, but not after correction"
    return f"significantly {side}"


def _difficulty_table(comparison: Comparison) -> Table:
    bins = comparison.bins
    heads = [f"{label} ({count_noun(len(tasks), 'task')})" for label, tasks in bins.items()]
    rows = [
        (one.name, [_percent_cell(one.by_difficulty.get(label)) for label in bins]) for one in comparison.rows
    ]
    return Table(heads=heads, rows=rows)


def _time_table(comparison: Comparison) -> Table:
    """Seconds by stage, with their shares of all stages as details."""
    rows: list[Row] = []
    for row in (row for row in comparison.rows if row.stages):
        total = sum(row.stages.values()) or 1.0
        cells = [cell(f"{row.stages[name]:,.0f}", f"{row.stages[name] / total:.0%}") for name in STAGES]
        cells.append(_total_cell(row, "seconds", lambda value: f"{value:,.0f}"))
        rows.append(
            (row.name, [*cells, _total_cell(row, "episodes_per_second", lambda value: f"{value:.1f}")])
        )
    heads = [*(f"{stage}, s" for stage in STAGES), "total, s", "episodes per second of rollout"]
    return Table(heads=heads, rows=rows)


def missing_note(comparison: Comparison) -> str:
    """Runs and tasks left out of the figures; "" if all are there."""
    notes = []
    if comparison.missing:
        by_method: dict[str, list[str]] = {}
        for name, seed in comparison.missing:
            by_method.setdefault(name, []).append(str(seed))
        named = "; ".join(f"{name}: seed {', '.join(seeds)}" for name, seeds in by_method.items())
        notes.append(f"Unfinished runs, not included in the figures: {named}.")
    if tasks := sorted({task for tasks in comparison.left_out.values() for task in tasks}):
        named = ", ".join(tasks)
        notes.append(f"Tasks without a verdict in some evaluation, left out of all success rates: {named}.")
    return " ".join(notes)


def _recipe_differences(comparison: Comparison, runs: Sequence[RunResult]) -> str:
    """Settings unlike those of the baseline; unlike those of the first method if it is the base model."""
    known = {run.method: run.config for run in reversed(runs)}
    configs = {row.name: known[row.name] for row in comparison.rows if row.name in known}
    reference = comparison.reference if comparison.reference in configs else next(iter(configs), "")
    return "\n".join(describe_differences(configs, reference, {}))


def _subtitle(runs: Sequence[RunResult]) -> str:
    """Model and training tasks ("several" if methods differ), and the number of seeds."""

    def shared(values: set[str]) -> str:
        return values.pop() if len(values) == 1 else "several"

    model = shared({run.config.model.path for run in runs})
    tasks = shared({run.config.tasks.train for run in runs})
    played = {task for run in runs for one in run.evaluations for task in one.tallies.get(TRAIN, {})}
    number = f"{count_noun(len(played), 'training task')} of" if played else "training tasks"
    seeds = len({run.seed for run in runs if run.ended})
    return f"Model {model}, {number} {tasks}, {count_noun(seeds, 'seed')}"


def terminal_lines(comparison: Comparison) -> list[str]:
    """Success rates, differences and unfinished runs, for a terminal."""
    lines = ["", "Success rates in percent, and their standard deviation over seeds:", ""]
    lines += _aligned(success_table(comparison))
    if comparison.differences:
        reference = display_name(comparison.reference)
        lines += ["", f"Difference from {reference} in percentage points, with its 95% interval:", ""]
        lines += _aligned(difference_table(comparison))
    return [*lines, *filter(None, ["", missing_note(comparison)])]


def _aligned(table: Table) -> list[str]:
    """The names on the left, all numbers on the right."""
    rows = [["", *table.heads]]
    rows += [[display_name(name), *(value for value, _, _ in cells)] for name, cells in table.rows]
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip() for name, *cells in rows]


def to_json(comparison: Comparison, runs: Sequence[RunResult]) -> str:
    """JSON with all numbers of the comparison and the results of every run, one run per line.

    The field names of the dataclasses are the JSON keys. Tallies are [sum of scores, rollouts] by task.
    """
    run_lines = ",\n".join(f"  {json.dumps(asdict(run))}" for run in runs)
    parts = [
        f' "{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in asdict(comparison).items()
    ]
    return "{\n" + ",\n".join([*parts, f' "runs": [\n{run_lines}\n ]']) + "\n}\n"
