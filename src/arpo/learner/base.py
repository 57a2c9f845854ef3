"""The learner protocol: batches of samples in, metrics and new weights out. It knows no tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from arpo.engines.base import Weights
from arpo.types import Sample

Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch: its updates in order, each a set of samples whose weights already hold the normalisation."""

    updates: tuple[tuple[Sample, ...], ...]


class Learner(Protocol):
    async def train(self, batch: Batch) -> Metrics: ...

    async def logprobs(self, samples: Sequence[Sample], *, base: bool) -> list[float]:
        """log π of what was sampled, summed over each sample; of the policy, or of the base model."""
        ...

    def weights(self) -> Weights: ...

    def save(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None: ...

    def close(self) -> None:
        """Let go of what it holds beyond this process."""
