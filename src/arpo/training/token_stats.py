"""The lines of token_stats.jsonl (store.token_stats): one for each answer and update that trained it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from arpo.learner.base import Batch, Learner, Metrics, TokenStats
from arpo.storage.run_folder import RunFolder

DIGITS = 4


async def train_and_store(learner: Learner, batch: Batch, store: RunFolder | None, step: int) -> Metrics:
    """Train on batch number `step`, then write its lines. Without a store, it writes none.

    Both block: in asynchronous training, this runs in the learner's thread.
    """
    metrics = await learner.train(batch)
    if store is not None:
        store_token_stats(store, step, batch, learner.token_stats())
    return metrics


def store_token_stats(
    store: RunFolder, step: int, batch: Batch, stats: Sequence[Sequence[TokenStats]]
) -> None:
    """Write the lines of batch number `step`. `stats` come from the learner: empty if no update ran."""
    for line in _lines(step, batch, stats) if stats else ():
        store.log_token_stats(line)


def _lines(step: int, batch: Batch, stats: Sequence[Sequence[TokenStats]]) -> Iterator[dict[str, Any]]:
    """Updates and turns are counted from 1. A value that is not finite becomes None."""
    for update, (samples, values) in enumerate(zip(batch.updates, stats, strict=True), 1):
        for sample, found in zip(samples, values, strict=True):
            end = 0
            for answer in sample.answers:
                start, end = end, end + answer.tokens
                yield {
                    "step": step,
                    "update": update,
                    "episode": answer.episode_id,
                    "turn": answer.turn,
                    "replayed": sample.replayed,
                    "entropy": _rounded(found.entropy[start:end]),
                    "ratio": _rounded(found.ratio[start:end]),
                    "clipped": list(map(int, found.clipped[start:end])),
                }


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [round(value, DIGITS) if math.isfinite(value) else None for value in values]
