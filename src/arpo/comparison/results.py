"""Computes a comparison from the results of runs: success rates, curves, differences. No file, no clock.

The success rate of a run on a set of tasks is the mean over tasks of the mean score of their rollouts. Every
task has equal weight. If no episode failed, this equals the mean over all rollouts in the run's summary. All
rows and differences cover the same tasks: a task without a verdict in one evaluation is left out of all. Only
finished runs enter rows and differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np

from arpo.config import Config
from arpo.config.task_set_names import OVERALL, TRAIN, in_order
from arpo.reporting.statistics import holm, mean_over_seeds_and_tasks
from arpo.tasks.screened import Count

BASE, FINAL = "base", "final"  # landmarks of evaluations; BASE is also the name of the base model's row
STAGES = ("rollout", "learn", "evaluate")
TIMING_KEYS = {"rollout": "rollout", "learn": "learn", "judge": "learn", "evaluate": "evaluate"}  # -> stage
# (maximum number of successes in 16 rollouts, label)
DIFFICULTY_BINS = ((0, "never"), (3, "1–3 of 16"), (8, "4–8 of 16"), (13, "9–13 of 16"), (16, "14–16 of 16"))
SMOOTHING_WINDOW = 5  # batches

Tally = tuple[float, int]  # (sum of scores, number of rollouts)
Tallies = Mapping[str, Tally]  # by task
TalliesBySet = Mapping[str, Tallies]  # by task set
TalliesBySeed = Mapping[int, TalliesBySet]
Curve = Sequence[tuple[float, float]]
Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    step: int
    episodes: int  # training episodes played before this evaluation
    landmark: str  # BASE, FINAL, or "" in between
    tallies: TalliesBySet


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Contents of one run folder. The run may still be in progress."""

    method: str
    seed: int
    config: Config
    episodes: int
    seconds: float  # includes the collection of its episodes, if the method is offline
    ended: bool
    batches: tuple[Record, ...]  # BATCH_METRICS of each training batch
    stages: Mapping[str, float]  # seconds by stage
    evaluations: tuple[Evaluation, ...]

    def tallies_at(self, landmark: str) -> TalliesBySet:
        """Tallies of the last evaluation with this landmark; {} if there is none."""
        found = [one.tallies for one in self.evaluations if one.landmark == landmark]
        return found[-1] if found else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedStats:
    """Mean and standard deviation of a number over seeds."""

    mean: float
    sd: float | None  # None for one seed
    seeds: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """Results of one method, or of the base model, over its finished runs. Unknown values have no key."""

    name: str
    success: Mapping[str, SeedStats]  # success rate by task set
    totals: Mapping[str, SeedStats]  # keys: see TOTALS
    stages: Mapping[str, float]  # mean seconds
    by_difficulty: Mapping[str, SeedStats]  # success rate on the training tasks of each bin


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Success rate of a method minus that of the baseline, over the seeds and tasks of both."""

    method: str
    tasks: str  # the task set
    mean: float
    by_seed: Mapping[int, float]
    task_count: int
    interval: tuple[float, float] | None  # 95% confidence interval over seeds and tasks; None for one value
    p: float
    corrected_p: float  # by Holm, for all differences of the comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Mean, minimum and maximum over seeds at one x, a number of training episodes."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    reference: str  # name of the baseline
    task_sets: tuple[str, ...]  # those with a success rate
    rows: tuple[MethodResult, ...]  # the base model first
    differences: tuple[Difference, ...]
    curves: Mapping[str, Mapping[str, tuple[CurvePoint, ...]]]  # by task set or key of CURVES, by method
    bins: Mapping[str, tuple[str, ...]]  # training tasks by difficulty
    screened: bool  # True: bins use screening counts; False: bins use the base model's evaluations
    missing: tuple[tuple[str, int], ...]  # (method, seed) pairs without a finished run
    left_out: Mapping[str, tuple[str, ...]]  # by task set, the tasks without a verdict in some evaluation


BATCH_METRICS = ("step", "episodes", "success", "groups", "without_signal", "rescued", "replay_age")


def run_result(
    method: str,
    seed: int,
    config: Config,
    *,
    summary: Record,
    metrics: Iterable[Record],
    timing: Iterable[Record],
    evaluations: Iterable[Record],
    collection_seconds: float,
) -> RunResult:
    """The result of a run from the checked records of its folder. `summary` is {} until the run has ended."""
    batches = [line for line in metrics if line["step"] > 0]
    stages: dict[str, float] = {}
    for line in timing:
        for key, stage in TIMING_KEYS.items():
            stages[stage] = stages.get(stage, 0.0) + (line.get(key) or 0.0)
    evaluated = tuple(
        Evaluation(
            step=line["step"],
            episodes=line["episodes"],
            landmark=line["landmark"],
            tallies={
                task_set: {task: (sum(scores), len(scores)) for task, scores in by_task.items()}
                for task_set, by_task in line["sets"].items()
            },
        )
        for line in evaluations
    )
    return RunResult(
        method=method,
        seed=seed,
        config=config,
        episodes=summary.get("episodes") or max((line.get("episodes") or 0 for line in batches), default=0),
        seconds=(summary.get("seconds") or 0.0) + collection_seconds,
        ended=bool(summary) and any(one.landmark == FINAL for one in evaluated),
        batches=tuple({name: line.get(name) for name in BATCH_METRICS} for line in batches),
        stages=stages,
        evaluations=evaluated,
    )


def compare_runs(
    runs: Sequence[RunResult],
    wanted: Mapping[str, Iterable[int]],
    baseline: str,
    counts: Mapping[str, Count],
) -> Comparison:
    """Compute all numbers of a comparison.

    `wanted`: the seeds of each method, in the order of rows. `counts`: screening counts of the training
    tasks, or {}.
    """
    ended = {name: [run for run in runs if run.ended and run.method == name] for name in (BASE, *wanted)}
    played: dict[str, TalliesBySeed] = {BASE: _base_model(runs)}
    played |= {name: {run.seed: run.tallies_at(FINAL) for run in ended[name]} for name in wanted}
    left_out = _without_verdict(played)
    finals = {name: _leave_out(by_seed, left_out) for name, by_seed in played.items()}
    evaluated = [sets for by_seed in finals.values() for sets in by_seed.values()]
    task_sets = in_order(name for sets in evaluated for name in sets if sets[name])
    screened = any(count.rollouts for count in counts.values())
    solved: Tallies = {task: (count.successes, count.rollouts) for task, count in counts.items()}
    if not screened:
        solved = _added(sets.get(TRAIN, {}) for sets in finals[BASE].values())
    bins = bin_by_difficulty({task for sets in evaluated for task in sets.get(TRAIN, {})}, solved)
    pairs = [(task_set, name) for task_set in task_sets for name in finals if name != baseline]
    found = [paired_difference(name, task_set, finals[name], finals[baseline]) for task_set, name in pairs]
    differences = [one for one in found if one is not None]
    corrected = holm([one.p for one in differences])
    return Comparison(
        reference=baseline,
        task_sets=tuple(task_sets),
        rows=tuple(_method_result(name, finals[name], ended[name], task_sets, bins) for name in finals),
        differences=tuple(replace(one, corrected_p=p) for one, p in zip(differences, corrected, strict=True)),
        curves=learning_curves(runs, list(wanted)),
        bins=bins,
        screened=screened,
        missing=tuple((name, seed) for name in wanted for seed in wanted[name] if seed not in finals[name]),
        left_out={task_set: tuple(sorted(tasks)) for task_set, tasks in left_out.items()},
    )


def _without_verdict(played: Mapping[str, TalliesBySeed]) -> dict[str, set[str]]:
    """By task set, the tasks of which no episode could be played in one of the evaluations."""
    found: dict[str, set[str]] = {}
    for sets in (sets for by_seed in played.values() for sets in by_seed.values()):
        for task_set, tallies in sets.items():
            if missing := {task for task, (_, rollouts) in tallies.items() if not rollouts}:
                found.setdefault(task_set, set()).update(missing)
    return found


def _leave_out(by_seed: TalliesBySeed, left_out: Mapping[str, set[str]]) -> TalliesBySeed:
    return {
        seed: {
            task_set: _select(tallies, tallies.keys() - left_out.get(task_set, set()))
            for task_set, tallies in sets.items()
        }
        for seed, sets in by_seed.items()
    }


def _select(tallies: Tallies, tasks: Iterable[str]) -> Tallies:
    chosen = set(tasks)
    return {task: tally for task, tally in tallies.items() if task in chosen}


def _base_model(runs: Sequence[RunResult]) -> dict[int, TalliesBySet]:
    """Tallies of the base model by seed, summed over the base evaluations of all runs.

    Runs with the same seed sample the same rollouts, so more methods do not make the estimate more precise.
    Returns {} if the runs start from different models.
    """
    if len({run.config.model.path for run in runs}) > 1:
        return {}
    found: dict[int, dict[str, list[Tallies]]] = {}
    for run in runs:
        for task_set, tallies in run.tallies_at(BASE).items():
            found.setdefault(run.seed, {}).setdefault(task_set, []).append(tallies)
    return {seed: {name: _added(each) for name, each in sets.items()} for seed, sets in found.items()}


def _added(several: Iterable[Tallies]) -> dict[str, Tally]:
    total: dict[str, Tally] = {}
    for tallies in several:
        for task, (scores, rollouts) in tallies.items():
            before = total.get(task, (0, 0))
            total[task] = before[0] + scores, before[1] + rollouts
    return total


def success_rate(tallies: Tallies) -> float | None:
    """Mean over tasks of the mean score; None without rollouts. {"a": (1, 2), "b": (4, 4)} -> 0.75"""
    means = [_mean_score(tally) for tally in tallies.values() if tally[1]]
    return fmean(means) if means else None


def _mean_score(tally: Tally) -> float:
    return tally[0] / tally[1]


def bin_by_difficulty(tasks: Iterable[str], solved: Tallies) -> dict[str, tuple[str, ...]]:
    """Group tasks by the base model's success rate. Leaves out empty bins and tasks without rollouts.

    >>> bin_by_difficulty(["a", "b"], {"a": (2, 16), "b": (5, 8)})
    {"1–3 of 16": ("a",), "9–13 of 16": ("b",)}
    """
    bins: dict[str, list[str]] = {label: [] for _, label in DIFFICULTY_BINS}
    for task in sorted(tasks):
        tally = solved.get(task, (0, 0))
        if tally[1]:
            bins[next(label for limit, label in DIFFICULTY_BINS if 16 * _mean_score(tally) <= limit)].append(
                task
            )
    return {label: tuple(found) for label, found in bins.items() if found}


def _method_result(
    name: str,
    finals: TalliesBySeed,
    runs: Sequence[RunResult],
    task_sets: Sequence[str],
    bins: Mapping[str, Sequence[str]],
) -> MethodResult:
    trained = {seed: sets.get(TRAIN, {}) for seed, sets in finals.items()}
    stages = {stage: [run.stages.get(stage, 0.0) for run in runs] for stage in STAGES}
    return MethodResult(
        name=name,
        success=_seed_stats(
            {
                task_set: {seed: success_rate(sets.get(task_set, {})) for seed, sets in finals.items()}
                for task_set in task_sets
            }
        ),
        totals=_seed_stats({key: {run.seed: total(run) for run in runs} for key, total in TOTALS.items()}),
        stages={stage: fmean(seconds) for stage, seconds in stages.items() if seconds},
        by_difficulty=_seed_stats(
            {
                label: {seed: success_rate(_select(tallies, tasks)) for seed, tallies in trained.items()}
                for label, tasks in bins.items()
            }
        ),
    )


def _seed_stats(values: Mapping[str, Mapping[int, float | None]]) -> dict[str, SeedStats]:
    """Statistics over the seeds with a value; leaves out keys without any."""
    found = {}
    for key, by_seed in values.items():
        known = {seed: value for seed, value in by_seed.items() if value is not None}
        if known:
            sd = stdev(known.values()) if len(known) > 1 else None
            found[key] = SeedStats(mean=fmean(known.values()), sd=sd, seeds=known)
    return found


def _summed(name: str) -> Callable[[RunResult], float | None]:
    """Sum of a metric over batches; None if no batch has it (offline methods have no groups)."""

    def total(run: RunResult) -> float | None:
        values = [batch[name] for batch in run.batches if batch.get(name) is not None]
        return float(sum(values)) if values else None

    return total


TOTALS: Mapping[str, Callable[[RunResult], float | None]] = {
    "episodes": lambda run: float(run.episodes),
    "seconds": lambda run: run.seconds,
    **{name: _summed(name) for name in ("groups", "without_signal", "rescued")},
    "episodes_per_second": lambda run: (
        run.episodes / run.stages["rollout"] if run.stages.get("rollout") else None
    ),
}


def paired_difference(
    name: str, task_set: str, method: TalliesBySeed, baseline: TalliesBySeed
) -> Difference | None:
    """Difference paired by seed and task; None if the two have no seed or no task in common.

    It is over the tasks of all seeds. If no task is in all seeds (tasks.distinct: every seed has its own), it
    is over the tasks of each seed, and the means of the seeds are tested: they vary with their tasks too. A
    seed without this task set on one side is left out. The p-value is not corrected yet.
    """
    rows = {}
    for seed in sorted(method.keys() & baseline.keys()):
        other = baseline[seed].get(task_set, {})
        rows[seed] = {
            task: _mean_score(tally) - _mean_score(other[task])
            for task, tally in method[seed].get(task_set, {}).items()
            if tally[1] and other.get(task, (0, 0))[1]
        }
    rows = {seed: row for seed, row in rows.items() if row}
    if not rows:
        return None
    shared = sorted(set.intersection(*map(set, rows.values())))
    by_seed = {seed: fmean(row[task] for task in shared or row) for seed, row in rows.items()}
    differences_ST = [[row[task] for task in shared] or [by_seed[seed]] for seed, row in rows.items()]
    tested = mean_over_seeds_and_tasks(differences_ST)
    return Difference(
        method=name,
        tasks=task_set,
        mean=tested.mean,
        by_seed=by_seed,
        task_count=len(shared or {task for row in rows.values() for task in row}),
        interval=tested.interval,
        p=tested.p,
        corrected_p=tested.p,
    )


def learning_curves(
    runs: Sequence[RunResult], methods: Sequence[str]
) -> dict[str, dict[str, tuple[CurvePoint, ...]]]:
    """Average curves by task set or key of CURVES, and by method.

    Each is over the finished runs of its method, or over its unfinished ones if none finished.
    """
    evaluated = in_order(name for run in runs for one in run.evaluations for name in one.tallies)
    curves = {**{name: _evaluation_curve(name) for name in evaluated if name != OVERALL}, **CURVES}
    found: dict[str, dict[str, tuple[CurvePoint, ...]]] = {key: {} for key in curves}
    for name in methods:
        own = [run for run in runs if run.method == name]
        shown = [run for run in own if run.ended] or own
        for key, curve_of in curves.items():
            if points := average_curves([curve_of(run) for run in shown]):
                found[key][name] = points
    return found


def _evaluation_curve(task_set: str) -> Callable[[RunResult], Curve]:
    def curve(run: RunResult) -> Curve:
        """Offline methods have all episodes from the start, so two points: before and after training."""
        shown = [one for one in run.evaluations if one.landmark or run.config.train.method == "online"]
        rates = [
            (0 if one.landmark == BASE else one.episodes, success_rate(one.tallies.get(task_set, {})))
            for one in shown
        ]
        return [(x, y) for x, y in rates if y is not None]

    return curve


def _smoothed_ratio(numerator: str, denominator: str, weight: str = "") -> Callable[[RunResult], Curve]:
    """Ratio of two metrics, each summed over a window of batches. `weight` multiplies the numerator."""

    def curve(run: RunResult) -> Curve:
        needed = [numerator, denominator, "episodes", *([weight] if weight else [])]
        lines = [batch for batch in run.batches if all(batch.get(name) is not None for name in needed)]
        half_window = SMOOTHING_WINDOW // 2
        points = []
        for index, line in enumerate(lines):
            window = lines[max(0, index - half_window) : index + half_window + 1]
            if total := sum(one[denominator] for one in window):
                weighted = sum(one[numerator] * (one[weight] if weight else 1) for one in window)
                points.append((float(line["episodes"]), weighted / total))
        return points

    return curve


CURVES: Mapping[str, Callable[[RunResult], Curve]] = {
    "sampled": _smoothed_ratio("success", "groups", weight="groups"),
    "without_signal": _smoothed_ratio("without_signal", "groups"),
    "rescued": _smoothed_ratio("rescued", "groups"),
    "replay_age": _smoothed_ratio("replay_age", "rescued", weight="rescued"),
}


def average_curves(curves: Sequence[Curve]) -> tuple[CurvePoint, ...]:
    """Mean and range of several curves over their common x range, with linear interpolation.

    >>> average_curves([[(0, 0.0), (10, 1.0)], [(0, 0.2), (5, 0.4), (10, 0.8)]])[1]
    CurvePoint(x=5, mean=0.45, low=0.4, high=0.5)
    """
    curves = [curve for curve in curves if curve]
    if not curves:
        return ()
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    xs = sorted({x for curve in curves for x, _ in curve if first <= x <= last})
    values_CX = [np.interp(xs, *np.array(curve).T).tolist() for curve in curves]
    return tuple(
        CurvePoint(x=x, mean=fmean(values), low=min(values), high=max(values))
        for x, *values in zip(xs, *values_CX, strict=True)
    )
