"""Learning from stored episodes: rejection sampling (RFT), DPO and KTO, over whole trajectories.

Δ of a trajectory is log π_θ − log π_ref of all that the model sampled in it, end-of-turn tokens included and
nothing that it was shown: the sum over these tokens, or their mean (offline.length). π_ref is the base model.

A loss becomes one coefficient for each trajectory, ∂loss/∂Δ. It is handed to the learner as an advantage, in
a batch of one update, where the ratio is 1: there the learner's objective has the very gradient of the loss,
wherever a trajectory's samples run. No model is run here, and the caller passes the generator.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from arpo.algorithms.samples import trajectory_samples
from arpo.config import OfflineConfig
from arpo.types import Sample, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a loss says of the trajectories of one update: its derivative by each one's Δ, and its metrics."""

    coefficients: tuple[float, ...]
    metrics: Mapping[str, float]


def rft(logps: Sequence[float]) -> Verdict:
    """−mean of log π_θ, given each success's mean over its tokens."""
    nll = -fmean(logps)
    return Verdict(coefficients=(-1 / len(logps),) * len(logps), metrics={"loss": nll, "nll": nll})


def dpo(gains: Sequence[float], beta: float) -> Verdict:
    """−log σ(β (Δ_w − Δ_l)), averaged over pairs; `gains` are Δ_w, Δ_l of the first pair, of the second, …"""
    margins = [won - lost for won, lost in zip(gains[::2], gains[1::2], strict=True)]
    pulls = [beta * _sigmoid(-beta * margin) / len(margins) for margin in margins]
    return Verdict(
        coefficients=tuple(pull for each in pulls for pull in (-each, each)),
        metrics={
            "loss": fmean(_softplus(-beta * margin) for margin in margins),
            "margin": fmean(margins),
            "accuracy": fmean(margin > 0 for margin in margins),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """KTO's λ_D and λ_U."""

    desirable: float
    undesirable: float

    @classmethod
    def of(cls, successes: int, failures: int, settings: OfflineConfig) -> Balance:
        """So that all successes together weigh offline.desirable, and all failures offline.undesirable.

        133 successes and 379 failures, at 1 and 1: λ_D = 1.925, λ_U = 0.675. Where a kind is missing, as set.
        """
        half = (successes + failures) / 2
        return cls(
            desirable=settings.desirable * (half / successes if successes and failures else 1.0),
            undesirable=settings.undesirable * (half / failures if successes and failures else 1.0),
        )


def kto(
    gains: Sequence[float],
    desirable: Sequence[bool],
    mismatched: Sequence[float],
    beta: float,
    balance: Balance,
) -> Verdict:
    """Mean over all of λ_D (1 − σ(β(Δ − z₀))) for successes and λ_U (1 − σ(β(z₀ − Δ))) for failures.

    z₀ = max(0, mean Δ of the mismatched trajectories) is a constant: no gradient goes through it.
    """
    z0 = max(0.0, fmean(mismatched)) if mismatched else 0.0
    terms, coefficients = [], []
    for gain, wanted in zip(gains, desirable, strict=True):
        sign, weight = (1.0, balance.desirable) if wanted else (-1.0, balance.undesirable)
        value = _sigmoid(sign * beta * (gain - z0))
        terms.append(weight * (1 - value))
        coefficients.append(-sign * weight * beta * value * (1 - value) / len(gains))
    by_kind = {
        kind: [gain for gain, wanted in zip(gains, desirable, strict=True) if wanted == kind]
        for kind in (True, False)
    }
    metrics = {
        "loss": fmean(terms),
        "gain_desirable": _mean(by_kind[True]),
        "gain_undesirable": _mean(by_kind[False]),
        "z0": z0,
    }
    return Verdict(coefficients=tuple(coefficients), metrics=metrics)


def pairs(
    successes: Mapping[str, Sequence[str]], failures: Mapping[str, Sequence[str]], most: int, rng: Random
) -> list[tuple[str, str]]:
    """Each task's successes, `most` of them at most, each with a random failure of the same task.

    Both are episodes by task. A task that has but one kind gives none.
    """
    chosen = []
    for task in sorted(successes.keys() & failures.keys()):
        won = list(successes[task])
        won = won if len(won) <= most else rng.sample(won, most)
        chosen += [(each, rng.choice(failures[task])) for each in won]
    return chosen


def mismatched(trajectories: Sequence[Trajectory], rng: Random) -> list[Trajectory]:
    """KTO's mismatched trajectories: of each the answers and later screens, after another task's beginning.

    What stands before the first answer, the instruction and the first screen, is taken from a random one of
    the trajectories of other tasks. Where a sequence began anew because the window of screenshots slid, it
    goes on with its own. A trajectory that finds none of another task has no mismatched one.
    """
    made = []
    for trajectory in trajectories:
        others = [other for other in trajectories if other.task_id != trajectory.task_id]
        if others:
            first, *rest = trajectory.turns
            strange = rng.choice(others).turns[0]
            first = replace(
                first, screenshot=strange.screenshot, context=strange.context, images=strange.images
            )
            made.append(replace(trajectory, turns=(first, *rest)))
    return made


def samples_for(
    trajectories: Sequence[Trajectory], coefficients: Sequence[float], length: str
) -> Iterator[Sample]:
    """The samples of one update whose objective has −Σ coefficient · ∂Δ as its gradient."""
    for trajectory, coefficient in zip(trajectories, coefficients, strict=True):
        weight = 1.0 / trajectory.sampled_tokens if length == "mean" else 1.0
        yield from trajectory_samples(trajectory, -coefficient, weight, replayed=False)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
