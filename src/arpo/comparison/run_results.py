"""The results of one run, and success rates from its scores. Pure: no file, no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from arpo.config import Config

Tally = tuple[float, int]  # (sum of scores, number of rollouts)
Tallies = Mapping[str, Tally]  # by task
TalliesBySet = Mapping[str, Tallies]  # by task set, as in evaluations.jsonl
TalliesBySeed = Mapping[int, TalliesBySet]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    step: int
    episodes: int  # training episodes played before this evaluation
    landmark: str  # "base", "final", or "" in between
    tallies: TalliesBySet


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Contents of one run folder. The run may still be in progress."""

    method: str
    seed: int
    config: Config
    episodes: int
    seconds: float  # includes the collection of its episodes, if the method is offline
    ended: bool
    batches: tuple[Mapping[str, Any], ...]  # lines of metrics.jsonl with a training batch
    stages: Mapping[str, float]  # seconds by stage
    evaluations: tuple[Evaluation, ...]

    def tallies_at(self, landmark: str) -> TalliesBySet:
        """Tallies of the last evaluation with this landmark; {} if there is none."""
        found = [one.tallies for one in self.evaluations if one.landmark == landmark]
        return found[-1] if found else {}


def success_rate(tallies: Tallies) -> float | None:
    """Mean over tasks of the mean score; None without rollouts. {"a": (1, 2), "b": (4, 4)} -> 0.75"""
    means = [mean_score(tally) for tally in tallies.values() if tally[1]]
    return fmean(means) if means else None


def mean_score(tally: Tally) -> float:
    return tally[0] / tally[1]
