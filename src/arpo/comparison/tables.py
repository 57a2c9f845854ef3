"""Texts and tables of a comparison, and the Markdown report. Figures are in percent and percentage points."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from arpo.comparison.compare import BASE
from arpo.comparison.curves import SMOOTHING_WINDOW, CurvePoint
from arpo.comparison.results import STAGES, Comparison, Difference, MethodResult, SeedStats
from arpo.comparison.run_results import RunResult
from arpo.comparison.settings import differing_keys
from arpo.config.recipe import value
from arpo.config.task_set_names import set_label
from arpo.reporting.display import count_noun, format_duration
from arpo.reporting.numbers import NO_VALUE, format_points

SIGNIFICANCE_LEVEL = 0.05
MIN_SEEDS = 3  # with two, a test has up to 13% false positives

DEFINITIONS = (
    (
        "Difference",
        "Success rate of the method minus that of the baseline, in percentage points, on the same tasks with "
        "the same seeds. The seed sets the order of tasks and all random numbers.",
    ),
    (
        "95% interval",
        "95% confidence interval of the difference for other seeds and other tasks of this kind. Its squared "
        "standard error is the sum of two: of the mean over seeds and of the mean over tasks. It uses "
        "Student's t with the degrees of freedom of Welch and Satterthwaite. With one seed, it is over tasks "
        "only.",
    ),
    (
        "p",
        "Probability of a difference at least this far from zero if the method had no effect, by the same "
        "test: p is below 0.05 if and only if the interval excludes 0. Without any effect, about one test in "
        "twenty has p below 0.05.",
    ),
    (
        "Corrected p",
        "p after Holm's correction for the number of differences in this table. Without any effect, the "
        "chance that any of them is below 0.05 is about one in twenty. Tests outside this table, such as "
        "earlier trials, are not counted.",
    ),
    (
        "Result",
        "Significant: the corrected p is below 0.05. Suggestive: only the uncorrected p is. No significant "
        "difference: neither is; the methods may still differ. Fewer than three seeds tell too little about "
        "other seeds: then the result is about these runs.",
    ),
)
SUCCESS_NOTE = (
    "Success rate in percent: mean ± standard deviation over seeds, and the value of each seed. The success "
    "rate of one seed is the mean over tasks of the mean score of their rollouts. The base model is "
    "evaluated at the start of each run. Episodes: training episodes per run. Time: duration of one "
    "run; for offline methods it includes the collection of their episodes."
)
CURVE_NOTE = (
    "Mean over seeds against the number of training episodes. Evaluations use new rollouts. All other curves "
    f"are smoothed over {SMOOTHING_WINDOW} batches. Offline methods have all episodes from the start, so "
    "their curves have two points: before and after training."
)
TIME_NOTE = (
    "Mean over seeds; each run is one process. The total also includes loading, saving and collecting "
    "episodes, which belong to no stage."
)
CURVE_TITLES = {
    "sampled": "Success rate of training episodes",
    "without_signal": "Groups without signal",
    "rescued": "Groups rescued by replay",
    "replay_age": "Age of replayed successes, in batches",
}
DIFFERENCES_HEADING = "Difference from the baseline"
DIFFICULTY_HEADING = "Success rate by task difficulty"
COUNT_CURVES = ("replay_age",)  # all others are in percent
CURVE_COLUMNS = 5  # of a curve's table


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCell:
    """A value, and an optional detail in small print."""

    value: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.value} ({self.detail})" if self.detail else self.value


Table = tuple[tuple[str, ...], list[list[TableCell]]]  # (header, rows)


def display_name(method: str) -> str:
    return "base model" if method == BASE else method


def percent_cell(stats: SeedStats | None) -> TableCell:
    """Mean ± standard deviation, with the value of each seed as detail."""
    if stats is None:
        return TableCell(value=NO_VALUE)
    deviation = "" if stats.sd is None else f" ± {100 * stats.sd:.1f}"
    seeds = ", ".join(f"{100 * value:.1f}" for value in stats.seeds.values()) if len(stats.seeds) > 1 else ""
    return TableCell(value=f"{100 * stats.mean:.1f}{deviation}", detail=seeds)


def format_interval(ends: tuple[float, float] | None) -> str:
    return f"{format_points(ends[0])} to {format_points(ends[1])}" if ends else NO_VALUE


def format_p(p: float) -> str:
    if p < 0.0001:
        return "<0.0001"
    return f"{p:.2f}" if p >= 0.1 else f"{p:.3f}" if p >= 0.001 else f"{p:.4f}"


def curve_title(key: str) -> str:
    return CURVE_TITLES.get(key, f"Success rate on {set_label(key)}, in evaluations")


def success_table(comparison: Comparison) -> Table:
    task_sets = comparison.task_sets
    head = ("", *map(set_label, task_sets), "episodes", "time", "groups without signal", "groups rescued")
    return head, [
        [
            TableCell(value=display_name(row.name)),
            *(percent_cell(row.success.get(task_set)) for task_set in task_sets),
            _total_cell(row, "episodes", lambda value: f"{value:,.0f}"),
            _total_cell(row, "seconds", format_duration),
            *(_group_share_cell(row, key) for key in ("without_signal", "rescued")),
        ]
        for row in comparison.rows
    ]


def _total_cell(row: MethodResult, key: str, format_total: Callable[[float], str]) -> TableCell:
    return TableCell(value=format_total(row.totals[key].mean) if key in row.totals else NO_VALUE)


def _group_share_cell(row: MethodResult, key: str) -> TableCell:
    """Share of all groups, with the mean count over seeds as detail."""
    if key not in row.totals or not row.totals["groups"].mean:
        return TableCell(value=NO_VALUE)
    count, groups = row.totals[key].mean, row.totals["groups"].mean
    return TableCell(value=f"{100 * count / groups:.0f}%", detail=f"{count:,.0f} of {groups:,.0f}")


def difference_table(comparison: Comparison) -> Table:
    head = ("", "tasks", "difference", "95% interval", "p", "corrected p", "result")
    return head, [
        [
            TableCell(value=display_name(one.method)),
            TableCell(value=f"{set_label(one.tasks)} ({one.task_count})"),
            TableCell(value=format_points(one.mean), detail=_points_by_seed(one)),
            TableCell(value=format_interval(one.interval)),
            TableCell(value=format_p(one.p)),
            TableCell(value=format_p(one.corrected_p)),
            TableCell(value=significance(one)),
        ]
        for one in comparison.differences
    ]


def _points_by_seed(one: Difference) -> str:
    return ", ".join(format_points(value) for value in one.by_seed.values()) if len(one.by_seed) > 1 else ""


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


def difficulty_table(comparison: Comparison) -> Table:
    head = ("", *(f"{label} ({count_noun(len(tasks), 'task')})" for label, tasks in comparison.bins.items()))
    return head, [
        [
            TableCell(value=display_name(row.name)),
            *(percent_cell(row.by_difficulty.get(label)) for label in comparison.bins),
        ]
        for row in comparison.rows
    ]


def difficulty_note(comparison: Comparison) -> str:
    if comparison.screened:
        return "Training tasks grouped by the number of times the base model solved them in screening."
    return (
        "Training tasks grouped by the number of times the base model solved them in its evaluations, "
        "because the task list has no screening counts. Part of the gain on the hardest tasks is "
        "regression to the mean."
    )


def time_table(comparison: Comparison) -> Table:
    head = ("", *(f"{stage}, s" for stage in STAGES), "total, s", "episodes per second of rollout")
    rows = [row for row in comparison.rows if row.stages]
    return head, [
        [
            TableCell(value=row.name),
            *(TableCell(value=f"{row.stages[stage]:,.0f}") for stage in STAGES),
            _total_cell(row, "seconds", lambda value: f"{value:,.0f}"),
            _total_cell(row, "episodes_per_second", lambda value: f"{value:.1f}"),
        ]
        for row in rows
    ]


def curve_table(curves: Mapping[str, Sequence[CurvePoint]], *, percent: bool) -> Table:
    """Mean of each method at evenly spaced numbers of episodes. A cell needs a nearby point of the curve."""
    end = max(curve[-1].x for curve in curves.values())
    gap = end / (CURVE_COLUMNS - 1)
    columns = [gap * number for number in range(CURVE_COLUMNS)]
    rows = []
    for name, curve in curves.items():
        nearest = [min((abs(point.x - x), point.mean) for point in curve) for x in columns]
        means = [mean if distance <= gap / 4 else None for distance, mean in nearest]
        texts = [NO_VALUE if v is None else f"{100 * v:.1f}" if percent else f"{v:.1f}" for v in means]
        rows.append([TableCell(value=text) for text in (name, *texts)])
    return ("training episodes", *(f"{x:,.0f}" for x in columns)), rows


def missing_note(comparison: Comparison) -> str:
    """Runs and tasks left out of the figures."""
    return " ".join(filter(None, (_unfinished_note(comparison), _left_out_note(comparison))))


def _left_out_note(comparison: Comparison) -> str:
    if not comparison.left_out:
        return ""
    tasks = sorted({task for tasks in comparison.left_out.values() for task in tasks})
    return f"Tasks without a verdict in some evaluation, left out of all success rates: {', '.join(tasks)}."


def _unfinished_note(comparison: Comparison) -> str:
    if not comparison.missing:
        return ""
    by_method: dict[str, list[int]] = {}
    for name, seed in comparison.missing:
        by_method.setdefault(name, []).append(seed)
    named = "; ".join(f"{name}: seed {', '.join(map(str, seeds))}" for name, seeds in by_method.items())
    return f"Unfinished runs, not included in the figures: {named}."


def recipe_differences(comparison: Comparison, runs: Sequence[RunResult]) -> tuple[str, dict[str, str]]:
    """A caption, and for each method its settings unlike those of the baseline.

    If the baseline is the base model, the settings are compared with the first method.
    """
    run_configs = {run.method: run.config for run in runs}
    configs = {row.name: run_configs[row.name] for row in comparison.rows if row.name in run_configs}
    if len(configs) < 2:
        return "", {}
    baseline = comparison.reference if comparison.reference in configs else next(iter(configs))
    differences = {}
    for name in (name for name in configs if name != baseline):
        keys = differing_keys(configs[baseline], configs[name])
        settings = ", ".join(f"{key} = {json.dumps(value(configs[name], key))}" for key in keys)
        differences[name] = settings or "none"
    return f"Settings that differ from {baseline}.", differences


def subtitle(runs: Sequence[RunResult]) -> str:
    """Model and training tasks ("several" if methods differ), and the number of seeds."""

    def shared(values: set[str]) -> str:
        return values.pop() if len(values) == 1 else "several"

    model = shared({run.config.model.path for run in runs})
    tasks = shared({run.config.tasks.train for run in runs})
    played = {task for run in runs for one in run.evaluations for task in one.tallies.get("train", {})}
    number = f"{count_noun(len(played), 'training task')} of" if played else "training tasks"
    seeds = len({run.seed for run in runs if run.ended})
    return f"Model {model}, {number} {tasks}, {count_noun(seeds, 'seed')}"


def render_markdown(comparison: Comparison, runs: Sequence[RunResult]) -> str:
    parts = ["# Comparison", f"{subtitle(runs)}. {SUCCESS_NOTE}", missing_note(comparison)]
    parts += [_table(success_table(comparison))]
    if comparison.differences:
        parts += [f"## {DIFFERENCES_HEADING}: {display_name(comparison.reference)}"]
        parts += [_table(difference_table(comparison))]
        parts += [_list([f"**{term}**: {definition}" for term, definition in DEFINITIONS])]
    if comparison.bins:
        parts += [f"## {DIFFICULTY_HEADING}", difficulty_note(comparison)]
        parts += [_table(difficulty_table(comparison))]
    parts += ["## Curves", CURVE_NOTE]
    for key, curves in comparison.curves.items():
        if curves:
            table = curve_table(curves, percent=key not in COUNT_CURVES)
            parts += [f"{curve_title(key)}:", _table(table)]
    parts += ["## Time", _table(time_table(comparison)), TIME_NOTE]
    caption, differences = recipe_differences(comparison, runs)
    if differences:
        parts += ["## Recipes", caption]
        parts += [_list([f"{name}: {settings}" for name, settings in differences.items()])]
    return "\n\n".join(part for part in parts if part) + "\n"


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _table(table: Table) -> str:
    head, rows = table
    lines = [head, ["---"] * len(head), *([_escaped(str(cell)) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
