"""The offline methods: RFT (or SFT), DPO and KTO. `train.method` chooses one, once per run.

A method decides which stored episodes form the units of an update, and computes the loss of an update from
the learner's log-probabilities. The loss functions are in `algorithms/preference_losses.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import fsum
from random import Random
from typing import ClassVar

from arpo.algorithms.preference_losses import (
    KTOWeights,
    TrajectoryLoss,
    dpo,
    kto,
    mismatched,
    pairs,
    rft,
    samples_for,
)
from arpo.algorithms.samples import trajectory_samples
from arpo.learner.base import Batch, Learner
from arpo.types import Trajectory

BETA = 0.1  # DPO and KTO: strength of the constraint to the base model
Unit = tuple[str, ...]  # episode ids that stay in one update: one episode, or for DPO (success, failure)
EpisodesByTask = Mapping[str, Sequence[str]]


class OfflineMethod(ABC):
    """An offline method."""

    needs: ClassVar[str] = "successes"  # the episodes that it learns from, for messages
    per_token: ClassVar[bool] = False  # log π of a trajectory is the mean over its tokens instead of the sum

    @abstractmethod
    def units(self, successes: EpisodesByTask, failures: EpisodesByTask, rng: Random) -> list[Unit]:
        """The units of one pass, in a fixed order. Empty if the method has nothing to learn from."""

    @abstractmethod
    def loss(
        self, learner: Learner, trajectories: Sequence[Trajectory], desirable: Sequence[bool], rng: Random
    ) -> TrajectoryLoss:
        """The loss of one update. `desirable` marks the successes among the trajectories."""

    def batch(self, trajectories: Sequence[Trajectory], loss: TrajectoryLoss) -> Batch:
        """The batch of one update whose gradient is the gradient of the loss."""
        return Batch(updates=(tuple(samples_for(trajectories, loss.coefficients, per_token=self.per_token)),))


class RFT(OfflineMethod):
    """Maximum likelihood on the successes: those of the model itself (rft), or of a teacher (sft)."""

    per_token = True

    def units(self, successes: EpisodesByTask, failures: EpisodesByTask, rng: Random) -> list[Unit]:
        return _single(successes)

    def loss(
        self, learner: Learner, trajectories: Sequence[Trajectory], desirable: Sequence[bool], rng: Random
    ) -> TrajectoryLoss:
        return rft(_logps(learner, trajectories, per_token=True, base=False))


class DPO(OfflineMethod):
    """Direct preference optimisation on pairs of a success and a failure of one task."""

    needs = "successes and failures of one task"

    def units(self, successes: EpisodesByTask, failures: EpisodesByTask, rng: Random) -> list[Unit]:
        return [*pairs(successes, failures, rng)]

    def loss(
        self, learner: Learner, trajectories: Sequence[Trajectory], desirable: Sequence[bool], rng: Random
    ) -> TrajectoryLoss:
        return dpo(_gains(learner, trajectories), BETA)


@dataclass(frozen=True, slots=True, kw_only=True)
class KTO(OfflineMethod):
    """Kahneman-Tversky optimisation on successes and failures, without pairs."""

    weights: KTOWeights

    def units(self, successes: EpisodesByTask, failures: EpisodesByTask, rng: Random) -> list[Unit]:
        return [*_single(successes), *_single(failures)] if successes else []

    def loss(
        self, learner: Learner, trajectories: Sequence[Trajectory], desirable: Sequence[bool], rng: Random
    ) -> TrajectoryLoss:
        reference = _gains(learner, mismatched(trajectories, rng))
        gains = _gains(learner, trajectories)
        return kto(gains, desirable, reference, BETA, self.weights)


def open_method(name: str, successes: int, failures: int) -> OfflineMethod:
    """The method of train.method. The numbers of episodes balance the weights of KTO."""
    match name:
        case "rft" | "sft":
            return RFT()
        case "dpo":
            return DPO()
        case "kto":
            return KTO(weights=KTOWeights.of(successes, failures))
    raise ValueError(f"train.method {name!r} is not an offline method")


def _single(episodes: EpisodesByTask) -> list[Unit]:
    return [(name,) for names in episodes.values() for name in names]


def _gains(learner: Learner, trajectories: Sequence[Trajectory]) -> list[float]:
    """Δ of each trajectory: log π_θ − log π_ref."""
    policy, base = [_logps(learner, trajectories, per_token=False, base=which) for which in (False, True)]
    return [ours - theirs for ours, theirs in zip(policy, base, strict=True)]


def _logps(
    learner: Learner, trajectories: Sequence[Trajectory], *, per_token: bool, base: bool
) -> list[float]:
    """log π of the sampled tokens of each trajectory: their mean if `per_token`, else their sum."""
    samples = [list(trajectory_samples(each, 0.0, 0.0, replayed=False)) for each in trajectories]
    logps = iter(learner.logprobs(list(chain(*samples)), base=base))
    sums = [sum(fsum(next(logps)) for _ in own) for own in samples]
    if not per_token:
        return sums
    return [total / each.sampled_tokens for total, each in zip(sums, trajectories, strict=True)]
