"""Advantage estimators: how much better each episode of a group did than the others.

Rewards in, advantages out, in the same order. If all rewards of a group are equal, it has no signal. Then
every estimator gives exactly zero, so rounding errors never become a gradient.

To add an estimator: write a function, add it to `ESTIMATORS`, and add its name to `loss.advantage` in
`config/settings.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev, stdev

NO_SIGNAL = 1e-6  # population σ of rewards; smaller values count as zero


def has_signal(rewards_G: Sequence[float]) -> bool:
    return len(rewards_G) >= 2 and pstdev(rewards_G) >= NO_SIGNAL


def advantages(rewards_G: Sequence[float], estimator: str) -> tuple[float, ...]:
    """Example: one success in a group of eight has the advantage +2.65 with grpo, the others −0.38."""
    if not has_signal(rewards_G):
        return (0.0,) * len(rewards_G)
    return ESTIMATORS[estimator](rewards_G)


def grpo(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """(r − mean) / σ, with the population σ."""
    mean, sigma = fmean(rewards_G), pstdev(rewards_G)
    return tuple((reward - mean) / sigma for reward in rewards_G)


def grpo_sample(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """(r − mean) / σ, with the sample σ (divisor G − 1), as in the published code."""
    mean, sigma = fmean(rewards_G), stdev(rewards_G)
    return tuple((reward - mean) / sigma for reward in rewards_G)


def mean_only(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """r − mean (Dr. GRPO). Does not scale up very hard or very easy tasks."""
    mean = fmean(rewards_G)
    return tuple(reward - mean for reward in rewards_G)


def rloo(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """r − mean of the other episodes (leave-one-out)."""
    total, others = sum(rewards_G), len(rewards_G) - 1
    return tuple(reward - (total - reward) / others for reward in rewards_G)


ESTIMATORS: dict[str, Callable[[Sequence[float]], tuple[float, ...]]] = {
    "grpo": grpo,
    "grpo_sample": grpo_sample,
    "mean": mean_only,
    "rloo": rloo,
}
