"""Learner interface: takes batches of samples, returns metrics and new weights. A learner knows no tasks.

learner: Learner = LocalLearner(model, renderer, config)
batch = Batch(updates=((first, second), (third,)))  # three samples, two optimiser steps
metrics = learner.train(batch)  # {"loss": 0.12, "grad_norm": 0.8, "updates": 2.0, …}
await engine.load(learner.weights())  # version 1
learner.save(folder)
learner.close()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arpo.engines.base import Weights
from arpo.types import Answer, Sample

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The updates of one batch, in order. Each is a set of samples and becomes one optimiser step.

    The weights of the samples include the normalisation. Example: one update from one sample with 10 sampled
    tokens:

        Batch(updates=((replace(sample, weight=1 / 10),),))

    `lr_scales` has a factor of the learning rate for each update (`algorithms/schedules.py`). Empty: all 1.
    """

    updates: tuple[tuple[Sample, ...], ...]
    lr_scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.lr_scales) in (0, len(self.updates)), "one factor per update"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStats:
    """Values at the sampled tokens of one sample, in one update, before its optimiser step."""

    answers: tuple[Answer, ...]
    replayed: bool
    entropy: tuple[float, ...]
    ratio: tuple[float, ...]
    clipped: tuple[bool, ...]


class Learner(Protocol):
    """Trains a policy and provides its weights. The module docstring has an example.

    Its methods block their thread: they compute. At most one of them may run at a time.
    """

    def train(self, batch: Batch) -> Metrics:
        """Run all updates against one π_old, then increase the version by 1, even without samples.

        An update is skipped and counted (`metrics["skipped"]`) if its loss or gradient is not finite.
        """
        ...

    def token_stats(self) -> Sequence[Sequence[TokenStats]]:
        """Token statistics of the last batch: for each update, those of its samples, in their order.

        Empty without store.token_stats, and if no update ran. Skipped updates are included.
        """
        ...

    def logprobs(
        self, samples: Sequence[Sample], *, base: bool, temperature: float | None = None
    ) -> list[tuple[float, ...]]:
        """log π of each sampled token, for each sample, under the policy or the base model.

        The temperature is that of sampling (rollout.temperature), if None.
        """
        ...

    def weights(self) -> Weights:
        """The current version and a handle on its weights, for an engine in this process."""
        ...

    def save(self, folder: Path) -> None:
        """Write the trained weights, the optimiser state and the counters."""
        ...

    def publish(self, folder: Path) -> None:
        """Write the weights for engines in other processes: the full model, or its adapters (`publish`)."""
        ...

    def load(self, folder: Path) -> None:
        """Resume from a saved folder. Raises `UserError` if it is damaged or belongs to another model."""
        ...

    def close(self) -> None:
        """Release resources outside this process."""
