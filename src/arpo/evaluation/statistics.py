"""What numbers tell of what is behind them: intervals of rates and means, tests, the best of several tries.

Nothing here draws from a generator of its own: whoever wants chance passes it in, and gets the same again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

Z95 = 1.959963984540054  # a normal variable is within this many deviations 95% of the time

# The same for Student's variable of 1, 2, … degrees of freedom.
T95 = (
    12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157, 2.228139,
    2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922, 2.093024, 2.085963,
)  # fmt: skip
EXACT_UP_TO = 12  # differences: the sign-flip test tries all 4,096 signs of so many


def wilson(successes: float, episodes: int) -> tuple[float, float]:
    """Wilson's 95% interval of a rate; it stays within [0, 1] and is honest for few episodes.

    Scores between 0 and 1 vary less than successes of the same mean, so for them it is rather too wide.

    >>> wilson(8, 10)
    (0.4901624715, 0.9433178485)
    """
    if episodes == 0:
        return 0.0, 1.0
    rate, share = successes / episodes, Z95**2 / episodes
    centre = (rate + share / 2) / (1 + share)
    reach = Z95 * math.sqrt(rate * (1 - rate) / episodes + share / (4 * episodes)) / (1 + share)
    return max(0.0, centre - reach), min(1.0, centre + reach)


def pass_at(k: int, scores: Sequence[float]) -> float:
    """The best of k tries, expected: without bias, from n >= k of them.

    It is the mean of the best over every choice of k of the scores. Where c of them are 1 and the others 0,
    that is 1 - C(n-c, k) / C(n, k).

    >>> pass_at(2, [1, 0, 0, 0])
    0.5
    """
    if not 1 <= k <= len(scores):
        raise ValueError(f"the best of {k} cannot be told from {len(scores)} tries")
    choices = [math.comb(below, k - 1) for below in range(len(scores))]  # in which the next score is the best
    best = sum(score * count for score, count in zip(sorted(scores), choices, strict=True))
    return best / math.comb(len(scores), k)


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95% interval of the mean of what these values were drawn from; it takes two or more.

    >>> student_interval([0.1, 0.2, 0.3])
    (-0.0484, 0.4484)
    """
    if len(values) < 2:
        raise ValueError("one value has no spread to make an interval of")
    reach = t95(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - reach, fmean(values) + reach


def t95(freedom: int) -> float:
    """Student's variable is within this 95% of the time; beyond the table by its expansion."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = Z95
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))


def crossed_bootstrap(values_ST: Sequence[Sequence[float]], rng: Random, draws: int) -> tuple[float, float]:
    """The 95% interval of the mean over rows and columns, when both could have been others.

    A draw takes as many rows as there are, with replacement, and as many columns, and means what is in both;
    the interval is that of the middle 95% of all draws. What is common to a row (a seed's luck) or a column
    (a task's nature) so counts as one thing and not as many. With S rows it sees (S-1)/S of the rows' own
    variance, so it is too narrow where that is large and rows are few; noise of the single cells it counts
    up to three times.
    """
    cells_ST = np.asarray(values_ST, dtype=np.float64)
    rows, columns = cells_ST.shape
    means = np.empty(draws)
    for start in range(0, draws, 500):  # a few megabytes at a time
        count = min(500, draws - start)
        of_rows_NT = cells_ST[_places(rng, count, rows)].mean(axis=1)
        chosen_NT = np.take_along_axis(of_rows_NT, _places(rng, count, columns), axis=1)
        means[start : start + count] = chosen_NT.mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def sign_flip_p(differences: Sequence[float], rng: Random, draws: int) -> float:
    """How often chance alone would bring the mean this far from zero, were each as likely with either sign.

    For few differences all signs are tried; else `draws` of them, and those that were seen count as one more.

    >>> sign_flip_p([1, 2, 3], Random(0), 1000)  # of the 8 signs, +++ and --- reach 6
    0.25
    """
    values_T = np.asarray(differences, dtype=np.float64)
    count = len(values_T)
    rounding = 1e-9 * np.abs(values_T).sum()  # the same numbers in another order add up to a little less
    seen = abs(values_T.sum()) - rounding
    if count <= EXACT_UP_TO:
        flips = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
        return float(_reach(flips, values_T, seen) / 2**count)
    bits = np.frombuffer(rng.randbytes(draws * count), dtype=np.uint8).reshape(draws, count) & 1
    return float((1 + _reach(bits, values_T, seen)) / (1 + draws))


def _reach(flips_NT: NDArray[np.integer], values_T: Floats, seen: float) -> int:
    """How many of the flips bring the sum at least as far from zero as it was seen."""
    return int((np.abs((1 - 2 * flips_NT.astype(np.int8)) @ values_T) >= seen).sum())


def _places(rng: Random, draws: int, count: int) -> NDArray[np.int64]:
    """(draws, count) places below `count`, each as likely."""
    words = np.frombuffer(rng.randbytes(4 * draws * count), dtype="<u4").astype(np.uint64)
    return (words * np.uint64(count) >> np.uint64(32)).astype(np.int64).reshape(draws, count)
