"""Computes a comparison from run results: success rates, curves and differences. Pure: no file, no clock.

The success rate of a run on a set of tasks is the mean over tasks of the mean score of their rollouts. Every
task has equal weight. If no episode failed, this equals the mean over all rollouts in the run's summary. All
rows and differences cover the same tasks: a task without a verdict in one evaluation is left out of all. Only
finished runs enter rows and differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from arpo.comparison.compare import BASE
from arpo.comparison.curves import CurvePoint, learning_curves
from arpo.comparison.run_results import (
    RunResult,
    Tallies,
    TalliesBySeed,
    Tally,
    mean_score,
    success_rate,
)
from arpo.comparison.statistics import holm, mean_over_seeds_and_tasks
from arpo.config.task_set_names import TRAIN, in_order
from arpo.tasks.screened import Count

STAGES = ("rollout", "learn", "evaluate")
# (maximum number of successes in 16 rollouts, label)
DIFFICULTY_BINS = ((0, "never"), (3, "1–3"), (8, "4–8"), (13, "9–13"), (16, "14–16"))


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
    methods = list(wanted)
    ended = [run for run in runs if run.ended]
    finals: dict[str, TalliesBySeed] = {BASE: base_model_tallies(runs)}
    finals |= {
        name: {run.seed: run.tallies_at("final") for run in _select_runs(ended, name)} for name in methods
    }
    left_out = _without_verdict(finals)
    finals = {name: _leave_out(by_seed, left_out) for name, by_seed in finals.items()}
    screened = any(count.rollouts for count in counts.values())
    solved: dict[str, Tally] = {}
    if screened:
        solved = {task: (count.successes, count.rollouts) for task, count in counts.items()}
    else:
        for sets in finals[BASE].values():
            _add(solved, sets.get(TRAIN, {}))
    tasks = {task for name in finals for sets in finals[name].values() for task in sets.get(TRAIN, {})}
    bins = bin_by_difficulty(tasks, solved)
    pairs = [(name, seed) for name, seeds in wanted.items() for seed in seeds]
    found = (name for by_seed in finals.values() for sets in by_seed.values() for name in sets if sets[name])
    task_sets = in_order(found)
    return Comparison(
        reference=baseline,
        task_sets=tuple(task_sets),
        rows=tuple(
            _method_result(name, finals[name], _select_runs(ended, name), task_sets, bins)
            for name in (BASE, *methods)
        ),
        differences=_corrected(_differences(finals, task_sets, baseline)),
        curves=learning_curves(runs, methods),
        bins=bins,
        screened=screened,
        missing=tuple(pair for pair in pairs if pair[1] not in finals[pair[0]]),
        left_out={task_set: tuple(sorted(tasks)) for task_set, tasks in left_out.items()},
    )


def _without_verdict(finals: Mapping[str, TalliesBySeed]) -> dict[str, set[str]]:
    """By task set, the tasks of which no episode could be played in one of the evaluations."""
    found: dict[str, set[str]] = {}
    for sets in (sets for by_seed in finals.values() for sets in by_seed.values()):
        for task_set, tallies in sets.items():
            if missing := {task for task, (_, rollouts) in tallies.items() if not rollouts}:
                found.setdefault(task_set, set()).update(missing)
    return found


def _leave_out(by_seed: TalliesBySeed, left_out: Mapping[str, set[str]]) -> TalliesBySeed:
    return {
        seed: {
            task_set: {
                task: tally for task, tally in tallies.items() if task not in left_out.get(task_set, ())
            }
            for task_set, tallies in sets.items()
        }
        for seed, sets in by_seed.items()
    }


def base_model_tallies(runs: Sequence[RunResult]) -> dict[int, dict[str, dict[str, Tally]]]:
    """Tallies of the base model by seed, task set and task, summed over the base evaluations of all runs.

    Runs with the same seed sample the same rollouts, so more methods do not make the estimate more precise.
    Returns {} if the runs start from different models.
    """
    total: dict[int, dict[str, dict[str, Tally]]] = {}
    if len({run.config.model.path for run in runs}) > 1:
        return total
    for run in runs:
        for task_set, tallies in run.tallies_at(BASE).items():
            _add(total.setdefault(run.seed, {}).setdefault(task_set, {}), tallies)
    return total


def _add(total: dict[str, Tally], tallies: Tallies) -> None:
    for task, (scores, rollouts) in tallies.items():
        before = total.get(task, (0, 0))
        total[task] = before[0] + scores, before[1] + rollouts


def seed_stats(values: Mapping[int, float]) -> SeedStats:
    numbers = list(values.values())
    return SeedStats(mean=fmean(numbers), sd=stdev(numbers) if len(numbers) > 1 else None, seeds=dict(values))


def bin_by_difficulty(tasks: Iterable[str], solved: Tallies) -> dict[str, tuple[str, ...]]:
    """Group tasks by the base model's success rate. Leaves out empty bins and tasks without rollouts.

    >>> bin_by_difficulty(["a", "b"], {"a": (2, 16), "b": (5, 8)})
    {"1–3 of 16": ("a",), "9–13 of 16": ("b",)}
    """
    labels = [f"{label} of 16" if limit else label for limit, label in DIFFICULTY_BINS]
    bins: dict[str, list[str]] = {label: [] for label in labels}
    for task in sorted(tasks):
        tally = solved.get(task, (0, 0))
        if tally[1]:
            index = next(i for i, (limit, _) in enumerate(DIFFICULTY_BINS) if 16 * mean_score(tally) <= limit)
            bins[labels[index]].append(task)
    return {label: tuple(found) for label, found in bins.items() if found}


def _select_runs(runs: Iterable[RunResult], method: str) -> list[RunResult]:
    return [run for run in runs if run.method == method]


def _method_result(
    name: str,
    finals: TalliesBySeed,
    runs: Sequence[RunResult],
    task_sets: Sequence[str],
    bins: Mapping[str, Sequence[str]],
) -> MethodResult:
    success = {
        task_set: {seed: success_rate(sets.get(task_set, {})) for seed, sets in finals.items()}
        for task_set in task_sets
    }
    difficulty = {
        label: {seed: success_rate(_select(sets.get(TRAIN, {}), tasks)) for seed, sets in finals.items()}
        for label, tasks in bins.items()
    }
    totals = {key: {run.seed: total(run) for run in runs} for key, total in TOTALS.items()}
    stages = {stage: [run.stages.get(stage, 0.0) for run in runs] for stage in STAGES}
    return MethodResult(
        name=name,
        success=_known_stats(success),
        totals=_known_stats(totals),
        stages={stage: fmean(seconds) for stage, seconds in stages.items() if seconds},
        by_difficulty=_known_stats(difficulty),
    )


def _select(tallies: Tallies, tasks: Iterable[str]) -> Tallies:
    return {task: tallies[task] for task in tasks if task in tallies}


def _known_stats(values: Mapping[str, Mapping[int, float | None]]) -> dict[str, SeedStats]:
    """Statistics over the seeds with a value; leaves out keys without any."""
    known = {
        key: {seed: value for seed, value in by_seed.items() if value is not None}
        for key, by_seed in values.items()
    }
    return {key: seed_stats(by_seed) for key, by_seed in known.items() if by_seed}


def _sum_metric(run: RunResult, name: str) -> float | None:
    """Sum over batches; None if no batch has the metric (offline methods have no groups)."""
    values = [batch[name] for batch in run.batches if batch.get(name) is not None]
    return float(sum(values)) if values else None


def _episodes_per_second(run: RunResult) -> float | None:
    return run.episodes / run.stages["rollout"] if run.stages.get("rollout") else None


TOTALS: Mapping[str, Callable[[RunResult], float | None]] = {
    "episodes": lambda run: float(run.episodes),
    "seconds": lambda run: run.seconds,
    "groups": lambda run: _sum_metric(run, "groups"),
    "without_signal": lambda run: _sum_metric(run, "without_signal"),
    "rescued": lambda run: _sum_metric(run, "rescued"),
    "episodes_per_second": _episodes_per_second,
}


def _differences(
    finals: Mapping[str, TalliesBySeed], task_sets: Sequence[str], baseline: str
) -> list[Difference]:
    pairs = [(task_set, name) for task_set in task_sets for name in finals if name != baseline]
    found = [paired_difference(name, task_set, finals[name], finals[baseline]) for task_set, name in pairs]
    return [one for one in found if one is not None]


def _corrected(differences: Sequence[Difference]) -> tuple[Difference, ...]:
    corrected = holm([one.p for one in differences])
    return tuple(replace(one, corrected_p=p) for one, p in zip(differences, corrected, strict=True))


def paired_difference(
    name: str,
    task_set: str,
    method: TalliesBySeed,
    baseline: TalliesBySeed,
) -> Difference | None:
    """Difference paired by seed and task; None if the two have no seed or no task in common.

    It is over the tasks of all seeds. If no task is in all seeds (tasks.distinct: every seed has its own), it
    is over the tasks of each seed, and the means of the seeds are tested: they vary with their tasks too. A
    seed without this task set on one side is left out. The p-value is not corrected yet.
    """
    rows = {
        seed: _differences_by_task(method[seed].get(task_set, {}), baseline[seed].get(task_set, {}))
        for seed in sorted(method.keys() & baseline.keys())
    }
    rows = {seed: row for seed, row in rows.items() if row}
    if not rows:
        return None
    shared = sorted(set.intersection(*map(set, rows.values())))
    tasks = shared or {task for row in rows.values() for task in row}
    by_seed = {seed: fmean(row[task] for task in shared or row) for seed, row in rows.items()}
    differences_ST = [[row[task] for task in shared] or [by_seed[seed]] for seed, row in rows.items()]
    tested = mean_over_seeds_and_tasks(differences_ST)
    return Difference(
        method=name,
        tasks=task_set,
        mean=tested.mean,
        by_seed=by_seed,
        task_count=len(tasks),
        interval=tested.interval,
        p=tested.p,
        corrected_p=tested.p,
    )


def _differences_by_task(method: Tallies, baseline: Tallies) -> dict[str, float]:
    """The differences on the tasks of both."""
    return {
        task: mean_score(tally) - mean_score(baseline[task])
        for task, tally in method.items()
        if tally[1] and baseline.get(task, (0, 0))[1]
    }
