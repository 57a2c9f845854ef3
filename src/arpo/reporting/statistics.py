"""Tests and confidence intervals over seeds and tasks and of changes, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanTest:
    """A mean with its 95% confidence interval, and the p-value of the hypothesis that it is 0.

    The interval excludes 0 if and only if p is below 0.05. It is None, and p is 1, for a single value.
    """

    mean: float
    interval: tuple[float, float] | None
    p: float


def mean_over_seeds_and_tasks(values_ST: Sequence[Sequence[float]]) -> MeanTest:
    """Test whether the mean of a table is 0, if its rows (seeds) and columns (tasks) are both samples.

    Squared standard error = variance of the row means / rows + variance of the column means / columns. So
    variation that the tasks of one seed share counts once, not once per task; so does that of one task. The
    noise of single cells counts twice, which makes the test cautious. The degrees of freedom of Student's t
    are those of Welch and Satterthwaite.

    A single row tells nothing about other seeds: then the standard error is over columns alone.

    >>> mean_over_seeds_and_tasks([[0.1, 0.3, 0.2], [0.2, 0.5, 0.2], [0.3, 0.4, 0.5]])
    MeanTest(mean=0.3, interval=(0.073, 0.527), p=0.021)
    """
    from scipy.special import stdtr, stdtrit  # slow to load

    rows_S = [fmean(row) for row in values_ST]
    columns_T = [fmean(column) for column in zip(*values_ST, strict=True)]
    mean = fmean(rows_S)
    parts = [
        (variance(means) / len(means), len(means) - 1) for means in (rows_S, columns_T) if len(means) > 1
    ]
    if not parts:
        return MeanTest(mean=mean, interval=None, p=1.0)
    squared_error = sum(part for part, _ in parts)
    if squared_error <= (1e-12 * max(abs(value) for row in values_ST for value in row)) ** 2:  # rounding
        return MeanTest(mean=mean, interval=(mean, mean), p=0.0 if mean else 1.0)
    degrees = squared_error**2 / sum(part**2 / own for part, own in parts)
    error = math.sqrt(squared_error)
    half_width = float(stdtrit(degrees, 0.975)) * error
    p = 2 * float(stdtr(degrees, -abs(mean) / error))
    return MeanTest(mean=mean, interval=(mean - half_width, mean + half_width), p=p)


def change_over_tasks(before_T: Sequence[float], after_T: Sequence[float]) -> tuple[float, float]:
    """95% interval of the change of a success rate. Both evaluations have the same tasks; values are rates.

    Student's t over tasks. If all tasks change alike, as in 0 of 8 twice, their variance tells nothing: then
    each task counts as one episode (`change_of_counts`).

    >>> change_over_tasks([0.0, 0.5, 0.0, 0.5], [1.0, 0.5, 1.0, 1.0])
    (-0.137, 1.0)
    """
    changes = [after - before for before, after in zip(before_T, after_T, strict=True)]
    if len(set(changes)) == 1:
        return change_of_counts((sum(before_T), len(changes)), (sum(after_T), len(changes)))
    interval = mean_over_seeds_and_tasks([changes]).interval
    assert interval is not None
    return max(-1.0, interval[0]), min(1.0, interval[1])


def change_of_counts(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """95% interval of the difference of two rates, each from (successes, episodes): Newcombe's method 10.

    >>> change_of_counts((0, 8), (8, 8))
    (0.54, 1.0)
    """
    (low_1, high_1), (low_2, high_2) = wilson(*before), wilson(*after)
    rate_1, rate_2 = before[0] / before[1], after[0] / after[1]
    change = rate_2 - rate_1
    return (
        change - math.hypot(rate_2 - low_2, high_1 - rate_1),
        change + math.hypot(high_2 - rate_2, rate_1 - low_1),
    )


def wilson(successes: float, episodes: float) -> tuple[float, float]:
    """Wilson's 95% interval of a rate."""
    rate, square = successes / episodes, 1.959964**2 / episodes
    centre = (rate + square / 2) / (1 + square)
    half = math.sqrt(square * (rate * (1 - rate) + square / 4)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p-values that hold for all tests of a family together, in the given order.

    The smallest of m p-values is multiplied by m, the next one by m - 1, and so on. A corrected p-value is at
    most 1, and at least that of every smaller p-value.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected
