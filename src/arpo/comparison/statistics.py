"""The test of a comparison, with its confidence interval and its correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

Z95 = 1.959963984540054  # two-sided 95% quantile of the normal distribution


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
    half_width = student_quantile(degrees) * error
    return MeanTest(
        mean=mean, interval=(mean - half_width, mean + half_width), p=student_p(mean / error, degrees)
    )


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


def student_p(t: float, degrees: float) -> float:
    """Two-sided p-value of Student's t: the probability of a value at least |t| away from 0.

    >>> student_p(4.302653, 2)
    0.05
    """
    return _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def student_quantile(degrees: float) -> float:
    """Two-sided 95% quantile of Student's t, by bisection: 12.7062 for 1, 2.7764 for 4, 1.98 for 120."""
    low, high = 0.0, Z95
    while student_p(high, degrees) > 0.05:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) > 0.05 else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function, by its continued fraction (Abramowitz and Stegun, 26.5.8)."""
    if x <= 0 or x >= 1:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    factor = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / a
    terms = 20 + int(5 * math.sqrt(max(a, b)))
    fraction = 1.0
    for term in range(terms, 0, -1):  # from the innermost fraction outwards
        half, odd = divmod(term, 2)
        share = (
            -(a + half) * (a + b + half) / ((a + 2 * half) * (a + 2 * half + 1))
            if odd
            else half * (b - half) / ((a + 2 * half - 1) * (a + 2 * half))
        )
        fraction = 1 + share * x / fraction
    return factor / fraction
