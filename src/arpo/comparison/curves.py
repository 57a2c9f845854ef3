"""Learning curves of a comparison: per run, and their mean and range over seeds. Pure: no file, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from arpo.comparison.compare import BASE
from arpo.comparison.run_results import RunResult, success_rate
from arpo.config.task_set_names import OVERALL, in_order

SMOOTHING_WINDOW = 5  # batches
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Mean, minimum and maximum over seeds at one x."""

    x: float
    mean: float
    low: float
    high: float


def learning_curves(
    runs: Sequence[RunResult], methods: Sequence[str]
) -> dict[str, dict[str, tuple[CurvePoint, ...]]]:
    """Average curves by task set or key of CURVES, and by method."""
    evaluated = in_order(name for run in runs for one in run.evaluations for name in one.tallies)
    curves = {**{name: _evaluation_curve(name) for name in evaluated if name != OVERALL}, **CURVES}
    return {key: _curves_by_method(runs, methods, curve_of) for key, curve_of in curves.items()}


def _evaluation_curve(task_set: str) -> Callable[[RunResult], Curve]:
    def curve(run: RunResult) -> Curve:
        """Offline methods have all episodes from the start, so two points: before and after training."""
        offline = run.config.train.method != "online"
        shown = [one for one in run.evaluations if one.landmark or not offline]
        rates = [
            (0 if one.landmark == BASE else one.episodes, success_rate(one.tallies.get(task_set, {})))
            for one in shown
        ]
        return [(x, y) for x, y in rates if y is not None]

    return curve


def _smoothed_ratio(numerator: str, denominator: str, weight: str = "") -> Callable[[RunResult], Curve]:
    """Ratio of two metrics, each summed over a window of batches. `weight` multiplies the numerator."""

    def curve(run: RunResult) -> Curve:
        lines = [b for b in run.batches if b.get(numerator) is not None and b.get(denominator) is not None]
        half_window = SMOOTHING_WINDOW // 2
        points = []
        for index, line in enumerate(lines):
            window = lines[max(0, index - half_window) : index + half_window + 1]
            total = sum(one[denominator] for one in window)
            if total:
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


def _curves_by_method(
    runs: Sequence[RunResult], methods: Sequence[str], curve_of: Callable[[RunResult], Curve]
) -> dict[str, tuple[CurvePoint, ...]]:
    """Average curve of each method over its finished runs, or over its unfinished ones if none finished."""
    averages = {}
    for name in methods:
        own = [run for run in runs if run.method == name]
        ended = [curve_of(run) for run in own if run.ended]
        averages[name] = average_curves(ended or [curve_of(run) for run in own])
    return {name: points for name, points in averages.items() if points}


def average_curves(curves: Sequence[Curve]) -> tuple[CurvePoint, ...]:
    """Mean and range of several curves over their common x range, with linear interpolation.

    >>> average_curves([[(0, 0.0), (10, 1.0)], [(0, 0.2), (5, 0.4), (10, 0.8)]])[1]
    CurvePoint(x=5, mean=0.45, low=0.4, high=0.5)
    """
    curves = [curve for curve in curves if curve]
    if not curves:
        return ()
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    common_xs = sorted({x for curve in curves for x, _ in curve if first <= x <= last})
    points = []
    for x in common_xs:
        values = [_interpolate(curve, x) for curve in curves]
        points.append(CurvePoint(x=x, mean=fmean(values), low=min(values), high=max(values)))
    return tuple(points)


def _interpolate(curve: Curve, x: float) -> float:
    """Value of a curve at x, which must lie within it."""
    after = next(index for index, (right, _) in enumerate(curve) if right >= x)
    (right, high), (left, low) = curve[after], curve[max(0, after - 1)]
    return high if right == left else low + (high - low) * (x - left) / (right - left)
