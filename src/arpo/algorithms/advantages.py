"""Advantages within one group: how much better each episode did than its siblings.

Rewards in, advantages out, in the same order. A group whose rewards are all the same has no signal: its
advantages are exactly zero under every estimator, so that rounding never becomes a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, pstdev

NO_SIGNAL = 1e-6  # a population σ of rewards below this is zero


def has_signal(rewards_G: Sequence[float]) -> bool:
    return len(rewards_G) >= 2 and pstdev(rewards_G) >= NO_SIGNAL


def advantages(rewards_G: Sequence[float], estimator: str) -> tuple[float, ...]:
    """One success in eight, grpo: +2.65 for it and −0.38 for each of the others."""
    if not has_signal(rewards_G):
        return (0.0,) * len(rewards_G)
    return ESTIMATORS[estimator](rewards_G)


def grpo(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """(r − mean) / σ, with the population's σ."""
    mean, sigma = fmean(rewards_G), pstdev(rewards_G)
    return tuple((reward - mean) / sigma for reward in rewards_G)


def mean_only(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """r − mean (Dr. GRPO): hard and easy tasks are not scaled up."""
    mean = fmean(rewards_G)
    return tuple(reward - mean for reward in rewards_G)


def rloo(rewards_G: Sequence[float]) -> tuple[float, ...]:
    """r − the mean of the other episodes."""
    total, others = sum(rewards_G), len(rewards_G) - 1
    return tuple(reward - (total - reward) / others for reward in rewards_G)


ESTIMATORS: dict[str, Callable[[Sequence[float]], tuple[float, ...]]] = {
    "grpo": grpo,
    "mean": mean_only,
    "rloo": rloo,
}
