"""What a comparison says, as numbers: from runs to rows, curves, differences. Pure: no file, no clock.

The success of a run on a set of tasks is the mean over its tasks of their rollouts' mean score, so that every
task counts alike; where no episode failed that is the mean over all rollouts, as in the run's own summary.
Where scores are 0 or 1 it is the share of rollouts solved. A run enters rows and differences once it has
ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, stdev
from typing import Any

from arpo.algorithms.curriculum import Count
from arpo.config import Config
from arpo.evaluation.compare import BASE
from arpo.evaluation.statistics import crossed_bootstrap, sign_flip_p, student_interval

SETS = {"train": "training tasks", "overall": "all tasks", "heldout": "held-out tasks"}
STAGES = ("rollout", "learn", "evaluate")
DRAWS = 10_000  # of a bootstrap and of a sign-flip test
SMOOTHED = 5  # batches
BINS = ((0, "never"), (3, "1–3"), (8, "4–8"), (13, "9–13"), (16, "14–16"))  # sixteenths, up to and with

Tally = tuple[float, int]  # the sum of scores, rollouts
Tallies = Mapping[str, Tally]  # by task
Sets = Mapping[str, Tallies]  # by set of tasks
BySeed = Mapping[int, Sets]
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    step: int
    episodes: int  # played to learn from, until then
    landmark: str
    tallies: Sets


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run as its folder tells it, ended or not."""

    method: str
    seed: int
    config: Config
    episodes: int
    seconds: float  # with those in which its episodes were collected
    ended: bool
    batches: tuple[Mapping[str, Any], ...]  # lines of metrics.jsonl, those of evaluations alone left out
    stages: Mapping[str, float]  # seconds
    evaluations: tuple[Evaluation, ...]

    def landmark(self, name: str) -> Sets:
        """The last evaluation of that name; nothing where there is none."""
        found = [one.tallies for one in self.evaluations if one.landmark == name]
        return found[-1] if found else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A number over seeds."""

    mean: float
    sd: float | None  # of one seed there is none
    seeds: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where a curve is, on the mean over seeds, and the range of the seeds around it."""

    x: float
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method, or the base model: what its ended runs found. What there is none of is left out."""

    name: str
    success: Mapping[str, Spread]  # by set of tasks
    totals: Mapping[str, Spread]  # episodes, seconds, groups, without_signal, rescued, episodes_per_second
    stages: Mapping[str, float]  # mean seconds
    by_difficulty: Mapping[str, Spread]  # on the training tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One method less the reference on one set of tasks, over the seeds and tasks that both have."""

    method: str
    tasks: str
    mean: float
    by_seed: Mapping[int, float]
    task_count: int
    student: tuple[float, float] | None  # of one seed there is none
    bootstrap: tuple[float, float]
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    reference: str
    rows: tuple[Row, ...]  # the base model first
    differences: tuple[Difference, ...]
    curves: Mapping[str, Mapping[str, tuple[Point, ...]]]  # by what they show, by method
    bins: Mapping[str, tuple[str, ...]]  # training tasks by difficulty
    screened: bool  # the bins are of screening's counts; else of the base model's own evaluations
    missing: tuple[tuple[str, int], ...]  # methods and seeds without an ended run


def compare(
    runs: Sequence[Run], methods: Sequence[str], seeds: int, reference: str, counts: Mapping[str, Count]
) -> Comparison:
    """Everything that the pages show. `counts` are screening's, of the training tasks; {}: there are none."""
    ended = [run for run in runs if run.ended]
    finals: dict[str, BySeed] = {BASE: pooled(runs)}
    finals |= {name: {run.seed: run.landmark("final") for run in _of(ended, name)} for name in methods}
    screened = any(count.rollouts for count in counts.values())
    solved: dict[str, Tally] = {}
    if screened:
        solved = {task: (count.successes, count.rollouts) for task, count in counts.items()}
    else:
        for sets in finals[BASE].values():
            _add(solved, sets.get("train", {}))
    tasks = {task for name in finals for sets in finals[name].values() for task in sets.get("train", {})}
    bins = by_difficulty(tasks, solved)
    wanted = [(name, seed) for name in methods for seed in range(seeds)]
    return Comparison(
        reference=reference,
        rows=tuple(_row(name, finals[name], _of(ended, name), bins) for name in (BASE, *methods)),
        differences=tuple(_differences(finals, reference)),
        curves={what: _curves(runs, methods, make) for what, make in CURVES.items()},
        bins=bins,
        screened=screened,
        missing=tuple(pair for pair in wanted if pair[1] not in finals[pair[0]]),
    )


def rate(tallies: Tallies) -> float | None:
    """The mean over tasks of the mean score: {"a": (1, 2), "b": (4, 4)} -> 0.75"""
    means = [_mean(tally) for tally in tallies.values() if tally[1]]
    return fmean(means) if means else None


def pooled(runs: Sequence[Run]) -> dict[int, dict[str, dict[str, Tally]]]:
    """The base model's tallies by seed, set and task, over the base evaluations of all methods.

    Methods of one seed measure it with the same draws, so more of them do not make it more exact. Methods
    that begin with different models have no base model to speak of: nothing is told of it.
    """
    total: dict[int, dict[str, dict[str, Tally]]] = {}
    if len({run.config.model.path for run in runs}) > 1:
        return total
    for run in runs:
        for which, tallies in run.landmark(BASE).items():
            of_set = total.setdefault(run.seed, {}).setdefault(which, {})
            _add(of_set, tallies)
    return total


def _add(total: dict[str, Tally], tallies: Tallies) -> None:
    for task, (scores, rollouts) in tallies.items():
        before = total.get(task, (0, 0))
        total[task] = before[0] + scores, before[1] + rollouts


def spread(values: Mapping[int, float]) -> Spread:
    numbers = list(values.values())
    return Spread(mean=fmean(numbers), sd=stdev(numbers) if len(numbers) > 1 else None, seeds=dict(values))


def by_difficulty(tasks: Iterable[str], solved: Tallies) -> dict[str, tuple[str, ...]]:
    """Tasks in bins by how often the base model solved them; empty bins and uncounted tasks are left out.

    >>> by_difficulty(["a", "b"], {"a": (2, 16), "b": (5, 8)})
    {"1–3 of 16": ("a",), "9–13 of 16": ("b",)}
    """
    bins: dict[str, list[str]] = {f"{label} of 16" if limit else label: [] for limit, label in BINS}
    for task in sorted(tasks):
        tally = solved.get(task, (0, 0))
        if tally[1]:
            place = next(place for place, (limit, _) in enumerate(BINS) if 16 * _mean(tally) <= limit)
            list(bins.values())[place].append(task)
    return {label: tuple(found) for label, found in bins.items() if found}


def _of(runs: Iterable[Run], method: str) -> list[Run]:
    return [run for run in runs if run.method == method]


def _row(
    name: str,
    finals: BySeed,
    runs: Sequence[Run],
    bins: Mapping[str, Sequence[str]],
) -> Row:
    success = {which: {seed: rate(sets.get(which, {})) for seed, sets in finals.items()} for which in SETS}
    difficulty = {
        label: {seed: rate(_only(sets.get("train", {}), tasks)) for seed, sets in finals.items()}
        for label, tasks in bins.items()
    }
    totals = {what: {run.seed: of(run) for run in runs} for what, of in TOTALS.items()}
    stages = {stage: [run.stages.get(stage, 0.0) for run in runs] for stage in STAGES}
    return Row(
        name=name,
        success=_spreads(success),
        totals=_spreads(totals),
        stages={stage: fmean(seconds) for stage, seconds in stages.items() if seconds},
        by_difficulty=_spreads(difficulty),
    )


def _only(tallies: Tallies, tasks: Iterable[str]) -> Tallies:
    return {task: tallies[task] for task in tasks if task in tallies}


def _spreads(values: Mapping[str, Mapping[int, float | None]]) -> dict[str, Spread]:
    known = {
        what: {seed: value for seed, value in of_seeds.items() if value is not None}
        for what, of_seeds in values.items()
    }
    return {what: spread(of_seeds) for what, of_seeds in known.items() if of_seeds}


def _sum(run: Run, name: str) -> float | None:
    """None where the run has no such thing: what learns from stored episodes has no groups."""
    values = [batch[name] for batch in run.batches if batch.get(name) is not None]
    return float(sum(values)) if values else None


def _pace(run: Run) -> float | None:
    return run.episodes / run.stages["rollout"] if run.stages.get("rollout") else None


TOTALS: Mapping[str, Callable[[Run], float | None]] = {
    "episodes": lambda run: float(run.episodes),
    "seconds": lambda run: run.seconds,
    "groups": lambda run: _sum(run, "groups"),
    "without_signal": lambda run: _sum(run, "without_signal"),
    "rescued": lambda run: _sum(run, "rescued"),
    "episodes_per_second": _pace,
}


def _differences(finals: Mapping[str, BySeed], reference: str) -> Iterable[Difference]:
    for which in SETS:
        for name in finals:
            if name != reference:
                found = difference(name, which, finals[name], finals[reference])
                if found is not None:
                    yield found


def difference(
    name: str,
    which: str,
    method: BySeed,
    reference: BySeed,
) -> Difference | None:
    """Paired by seed and task; None where the two have no seed or no task in common."""
    seeds = sorted(method.keys() & reference.keys())
    sides = [[side[seed].get(which, {}) for seed in seeds] for side in (method, reference)]
    played = [{task for task, tally in tallies.items() if tally[1]} for side in sides for tallies in side]
    tasks = sorted(set.intersection(*played)) if played else []
    if not tasks:
        return None
    cells_ST = [
        [_mean(one[task]) - _mean(other[task]) for task in tasks] for one, other in zip(*sides, strict=True)
    ]
    by_seed = {seed: fmean(row) for seed, row in zip(seeds, cells_ST, strict=True)}
    by_task = [fmean(column) for column in zip(*cells_ST, strict=True)]
    rng = Random(f"compare/{name}/{which}")  # so that the same runs give the same report
    return Difference(
        method=name,
        tasks=which,
        mean=fmean(by_task),
        by_seed=by_seed,
        task_count=len(tasks),
        student=student_interval(list(by_seed.values())) if len(seeds) > 1 else None,
        bootstrap=crossed_bootstrap(cells_ST, rng, DRAWS),
        p=sign_flip_p(by_task, rng, DRAWS),
    )


def _mean(tally: Tally) -> float:
    return tally[0] / tally[1]


def _evaluated(which: str) -> Callable[[Run], Curve]:
    def curve(run: Run) -> Curve:
        """What learns from stored episodes has all of them from the start: two points, before and after."""
        stored = run.config.train.method != "online"
        shown = [one for one in run.evaluations if one.landmark or not stored]
        rates = [
            (0 if one.landmark == BASE else one.episodes, rate(one.tallies.get(which, {}))) for one in shown
        ]
        return [(x, y) for x, y in rates if y is not None]

    return curve


def _smoothed(top: str, bottom: str, weight: str = "") -> Callable[[Run], Curve]:
    """The quotient of two sums over some batches around each; `weight` multiplies the upper one's parts."""

    def curve(run: Run) -> Curve:
        lines = [b for b in run.batches if b.get(top) is not None and b.get(bottom) is not None]
        reach = SMOOTHED // 2
        points = []
        for place, line in enumerate(lines):
            near = lines[max(0, place - reach) : place + reach + 1]
            total = sum(one[bottom] for one in near)
            if total:
                above = sum(one[top] * (one[weight] if weight else 1) for one in near)
                points.append((float(line["episodes"]), above / total))
        return points

    return curve


CURVES: Mapping[str, Callable[[Run], Curve]] = {
    "train": _evaluated("train"),
    "heldout": _evaluated("heldout"),
    "sampled": _smoothed("success", "groups", weight="groups"),
    "without_signal": _smoothed("without_signal", "groups"),
    "rescued": _smoothed("rescued", "groups"),
    "replay_age": _smoothed("replay_age", "rescued", weight="rescued"),
}


def _curves(
    runs: Sequence[Run], methods: Sequence[str], make: Callable[[Run], Curve]
) -> dict[str, tuple[Point, ...]]:
    """Of each method's ended runs; of one that has none, of those there are."""
    bands = {}
    for name in methods:
        own = _of(runs, name)
        bands[name] = band([make(run) for run in own if run.ended] or [make(run) for run in own])
    return {name: points for name, points in bands.items() if points}


def band(curves: Sequence[Curve]) -> tuple[Point, ...]:
    """The mean and the range of several curves, where all of them are; between its points each is straight.

    >>> band([[(0, 0.0), (10, 1.0)], [(0, 0.2), (5, 0.4), (10, 0.8)]])[1]
    Point(x=5, mean=0.45, low=0.4, high=0.5)
    """
    curves = [curve for curve in curves if curve]
    if not curves:
        return ()
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    places = sorted({x for curve in curves for x, _ in curve if first <= x <= last})
    points = []
    for x in places:
        values = [_height(curve, x) for curve in curves]
        points.append(Point(x=x, mean=fmean(values), low=min(values), high=max(values)))
    return tuple(points)


def _height(curve: Curve, x: float) -> float:
    """How high a curve is at x, which is not outside it."""
    after = next(place for place, (right, _) in enumerate(curve) if right >= x)
    (right, high), (left, low) = curve[after], curve[max(0, after - 1)]
    return high if right == left else low + (high - low) * (x - left) / (right - left)
