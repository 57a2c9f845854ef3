"""The counters of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Progress:
    """The counters of a run, stored in every checkpoint."""

    batch: int = 0
    tasks: int = 0  # in batches so far, over all epochs
    episodes: int = 0  # in batches so far
    failures: int = 0
    skipped: int = 0  # updates with an infinite or undefined loss or gradient
    untrained: int = 0  # batches without training, because engine and learner disagreed
    dropped_groups: int = 0  # too old to train on, in asynchronous training; their tasks were played again
    dropped_episodes: int = 0  # of these groups, finished or not
    learner_restarts: int = 0  # after the loss of a rank, on a cluster
    groups: dict[str, int] = field(default_factory=dict)
    success: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # rates by landmark (base, final) and task set
    counts: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    left_out: dict[str, list[str]] = field(
        default_factory=dict
    )  # tasks without a verdict before or after training, by task set
    seconds: float = 0.0
