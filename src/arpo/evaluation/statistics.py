"""Confidence intervals, a sign-flip test and pass@k. The caller passes the random number generator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Z95 = 1.959963984540054  # two-sided 95% quantile of the normal distribution

# Two-sided 95% quantiles of Student's t distribution for 1, 2, … degrees of freedom.
T95_TABLE = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
MAX_EXACT_DIFFERENCES = 12  # up to this many, the sign-flip test tries all sign combinations (4,096)


def wilson_interval(successes: float, episodes: int) -> tuple[float, float]:
    """Wilson 95% confidence interval of a success rate; accurate for few episodes, always within [0, 1].

    For scores between 0 and 1 the interval is conservative: they vary less than 0/1 scores of the same mean.

    >>> wilson_interval(8, 10)
    (0.4901624715, 0.9433178485)
    """
    if episodes == 0:
        return 0.0, 1.0
    rate, share = successes / episodes, Z95**2 / episodes
    centre = (rate + share / 2) / (1 + share)
    half_width = Z95 * math.sqrt(rate * (1 - rate) / episodes + share / (4 * episodes)) / (1 + share)
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


def pass_at(k: int, scores: Sequence[float]) -> float:
    """Unbiased estimate of pass@k, the expected best of k attempts, from n >= k scores.

    Equals the mean of the best score over all subsets of size k. If c scores are 1 and the others 0, it is
    1 - C(n-c, k) / C(n, k).

    >>> pass_at(2, [1, 0, 0, 0])
    0.5
    """
    if not 1 <= k <= len(scores):
        raise ValueError(f"pass@{k} needs at least {k} scores, got {len(scores)}")
    # Subsets in which the score at each sorted index is the best one.
    subsets = [math.comb(below, k - 1) for below in range(len(scores))]
    best = sum(score * count for score, count in zip(sorted(scores), subsets, strict=True))
    return best / math.comb(len(scores), k)


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """95% confidence interval of the mean by Student's t. Needs two or more values.

    >>> student_interval([0.1, 0.2, 0.3])
    (-0.0484, 0.4484)
    """
    if len(values) < 2:
        raise ValueError(f"a confidence interval needs two or more values, got {len(values)}")
    half_width = t95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half_width, fmean(values) + half_width


def t95(degrees_of_freedom: int) -> float:
    """Two-sided 95% quantile of Student's t; beyond the table by series expansion in 1/degrees_of_freedom."""
    if degrees_of_freedom <= len(T95_TABLE):
        return T95_TABLE[degrees_of_freedom - 1]
    z = Z95
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / degrees_of_freedom**power for power, term in enumerate(terms))


def crossed_bootstrap(values_ST: Sequence[Sequence[float]], rng: Random, draws: int) -> tuple[float, float]:
    """95% bootstrap confidence interval of the mean when rows (seeds) and columns (tasks) are both samples.

    Each draw resamples rows and columns with replacement and averages the selected cells. The interval covers
    the middle 95% of the draws. Variation shared by a row or a column therefore counts once, not per cell.

    With S rows the bootstrap sees (S-1)/S of the variance between rows. The interval is too narrow if that
    variance is large and rows are few. Noise of single cells counts up to three times.
    """
    cells_ST = np.asarray(values_ST, dtype=np.float64)
    rows, columns = cells_ST.shape
    means = np.empty(draws)
    for start in range(0, draws, 500):  # chunks bound the memory to a few megabytes
        count = min(500, draws - start)
        row_means_NT = cells_ST[_random_indices(rng, count, rows)].mean(axis=1)
        sampled_NT = np.take_along_axis(row_means_NT, _random_indices(rng, count, columns), axis=1)
        means[start : start + count] = sampled_NT.mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def sign_flip_p(differences: Sequence[float], rng: Random, draws: int) -> float:
    """p-value of a sign-flip test: probability of a mean at least this far from zero if signs are random.

    Tries all sign combinations for few differences. Otherwise it draws `draws` combinations and counts the
    observed one as well, so p is never 0.

    >>> sign_flip_p([1, 2, 3], Random(0), 1000)  # of the 8 combinations, +++ and --- reach 6
    0.25
    """
    values_T = np.asarray(differences, dtype=np.float64)
    count = len(values_T)
    rounding = 1e-9 * np.abs(values_T).sum()  # the order of summation changes the last digits
    observed = abs(values_T.sum()) - rounding
    if count <= MAX_EXACT_DIFFERENCES:
        flips = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        return float(_count_extreme(flips, values_T, observed) / 2**count)
    bits = np.frombuffer(rng.randbytes(draws * count), dtype=np.uint8).reshape(draws, count) & 1
    return float((1 + _count_extreme(bits, values_T, observed)) / (1 + draws))


def _count_extreme(flips_NT: NDArray[np.integer], values_T: Floats, observed: float) -> int:
    """Number of sign combinations with a sum at least `observed` away from zero."""
    return int((np.abs((1 - 2 * flips_NT.astype(np.int8)) @ values_T) >= observed).sum())


def _random_indices(rng: Random, draws: int, count: int) -> NDArray[np.int64]:
    """Array of shape (draws, count) with uniform indices below `count`."""
    words = np.frombuffer(rng.randbytes(4 * draws * count), dtype="<u4").astype(np.uint64)
    return (words * np.uint64(count) >> np.uint64(32)).astype(np.int64).reshape(draws, count)
