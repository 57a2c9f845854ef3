"""Samples to micro-batches, bounded by their padded tokens. Nothing is cut, nothing left out."""

from __future__ import annotations

from collections.abc import Sequence

from arpo.types import Sample

Microbatch = tuple[Sample, ...]


def pack(samples: Sequence[Sample], max_tokens: int) -> tuple[Microbatch, ...]:
    """Longest first, as many to a micro-batch as fit when all are padded to its longest.

    A sample that is longer than `max_tokens` gets a micro-batch of its own. Lengths 5, 2, 3, 1 with 6 tokens:
    (5), (3, 2), (1).
    """
    by_length = sorted(
        samples, key=lambda sample: -len(sample.token_ids)
    )  # stable: equal lengths keep their order
    microbatches = []
    while by_length:
        fits = max(1, max_tokens // len(by_length[0].token_ids))
        microbatches.append(tuple(by_length[:fits]))
        by_length = by_length[fits:]
    return tuple(microbatches)
