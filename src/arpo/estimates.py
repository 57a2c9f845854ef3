"""What counts tell of the rate behind them: an interval, and how good the best of several tries is."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054  # a normal variable is within this many deviations 95% of the time


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
