"""Losses over stored trajectories: rejection sampling (RFT), DPO and KTO.

Δ of a trajectory is the sum of log π_θ − log π_ref over its sampled tokens.
End-of-turn tokens count, prompt and image tokens do not. π_ref is the base model.

Each loss gives one coefficient per trajectory, ∂loss/∂Δ. The learner receives it as an advantage, in a batch
of one update. There the ratio is 1, so the gradient of the learner's objective is the gradient of the loss.
This holds however a trajectory is split into samples and ranks. No model runs here.

To add a loss: write a function that returns a `TrajectoryLoss` here, and its method in
`training/offline_methods.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

from arpo.algorithms.samples import trajectory_samples
from arpo.types import Sample, Trajectory

MAX_PAIRS = 8  # of DPO, per task and pass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryLoss:
    """The loss of one update: its derivative by the Δ of each trajectory, and its metrics.

    TrajectoryLoss(coefficients=(-0.05, 0.05), metrics={"loss": 0.69})
    """

    coefficients: tuple[float, ...]
    metrics: Mapping[str, float]


def rft(logps: Sequence[float]) -> TrajectoryLoss:
    """Negative mean of `logps`: log π_θ of each success, averaged over its tokens."""
    nll = -fmean(logps)
    return TrajectoryLoss(coefficients=(-1 / len(logps),) * len(logps), metrics={"loss": nll, "nll": nll})


def dpo(gains: Sequence[float], beta: float) -> TrajectoryLoss:
    """Mean of −log σ(β (Δ_w − Δ_l)) over pairs. `gains` lists Δ_w, Δ_l of pair 1, then of pair 2, …"""
    margins = [won - lost for won, lost in zip(gains[::2], gains[1::2], strict=True)]
    pulls = [beta * _sigmoid(-beta * margin) / len(margins) for margin in margins]
    return TrajectoryLoss(
        coefficients=tuple(pull for each in pulls for pull in (-each, each)),
        metrics={
            "loss": fmean(_softplus(-beta * margin) for margin in margins),
            "margin": fmean(margins),
            "accuracy": fmean(margin > 0 for margin in margins),
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KTOWeights:
    """λ_D and λ_U of KTO."""

    desirable: float
    undesirable: float

    @classmethod
    def of(cls, successes: int, failures: int) -> KTOWeights:
        """Give all successes together and all failures together the same weight.

        133 successes and 379 failures give λ_D = 1.925 and λ_U = 0.675. If there are only successes or only
        failures, both weights are 1.
        """
        if not successes or not failures:
            return cls(desirable=1.0, undesirable=1.0)
        half = (successes + failures) / 2
        return cls(desirable=half / successes, undesirable=half / failures)


def kto(
    gains: Sequence[float],
    desirable: Sequence[bool],
    mismatched: Sequence[float],
    beta: float,
    weights: KTOWeights,
) -> TrajectoryLoss:
    """Mean of λ_D (1 − σ(β(Δ − z₀))) over successes and λ_U (1 − σ(β(z₀ − Δ))) over failures.

    z₀ = max(0, mean Δ of the mismatched trajectories) is a constant without gradient.
    """
    z0 = max(0.0, fmean(mismatched)) if mismatched else 0.0
    terms, coefficients = [], []
    for gain, wanted in zip(gains, desirable, strict=True):
        sign, weight = (1.0, weights.desirable) if wanted else (-1.0, weights.undesirable)
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
    return TrajectoryLoss(coefficients=tuple(coefficients), metrics=metrics)


def pairs(
    successes: Mapping[str, Sequence[str]], failures: Mapping[str, Sequence[str]], rng: Random
) -> list[tuple[str, str]]:
    """Pair successes with random failures of the same task: at most MAX_PAIRS pairs per task.

    `successes` and `failures` map tasks to episode ids. A task without both gives no pair.
    """
    chosen = []
    for task in sorted(successes.keys() & failures.keys()):
        won = list(successes[task])
        won = won if len(won) <= MAX_PAIRS else rng.sample(won, MAX_PAIRS)
        chosen += [(each, rng.choice(failures[task])) for each in won]
    return chosen


def mismatched(trajectories: Sequence[Trajectory], rng: Random) -> list[Trajectory]:
    """KTO's mismatched trajectories: each keeps its answers but gets the first prompt of another task.

    The first prompt is the instruction and the first screenshot, taken from a random trajectory of another
    task. Later prompts stay, also after the screenshot window slid. A trajectory gives none if no trajectory
    of another task is present.
    """
    made = []
    for trajectory in trajectories:
        others = [other for other in trajectories if other.task_id != trajectory.task_id]
        if others:
            first, *rest = trajectory.turns
            other_first = rng.choice(others).turns[0]
            first = replace(
                first,
                screenshot=other_first.screenshot,
                context=other_first.context,
                images=other_first.images,
            )
            made.append(replace(trajectory, turns=(first, *rest)))
    return made


def samples_for(
    trajectories: Sequence[Trajectory], coefficients: Sequence[float], *, per_token: bool
) -> Iterator[Sample]:
    """The samples of one update. The gradient of its objective is −Σ coefficient · ∂Δ.

    `per_token`: the loss averages over the tokens of a trajectory instead of adding them.
    """
    for trajectory, coefficient in zip(trajectories, coefficients, strict=True):
        weight = 1.0 / trajectory.sampled_tokens if per_token else 1.0
        yield from trajectory_samples(trajectory, -coefficient, weight, replayed=False)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else math.nan
