"""Records entropy, ratio and clipping at every trained token (store.token_stats).

The values stay on the device of the learner until the batch is trained. Recording does not change training.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
import torch.distributed as dist
from torch import Tensor

from arpo.algorithms.losses import Tokens, TokenTerms
from arpo.algorithms.microbatches import Microbatch
from arpo.learner.base import TokenStats
from arpo.types import Sample

Stats = tuple[tuple[TokenStats, ...], ...]


class TokenRecorder:
    """The values of one batch, in the order in which this process trains its samples."""

    def __init__(self, enabled: bool, device: torch.device) -> None:
        self._enabled, self._device = enabled, device
        self._parts: list[Tensor] = []

    def begin(self) -> None:
        """Forget the last batch."""
        self._parts = []

    @property
    def size(self) -> int:
        """Number of recorded micro-batches."""
        return len(self._parts)

    def cut(self, size: int) -> None:
        """Forget all micro-batches after the first `size`."""
        del self._parts[size:]

    def add(self, tokens: Tokens, terms: TokenTerms) -> None:
        """Record a micro-batch."""
        if self._enabled:
            rows = (tokens.entropy_T.detach(), terms.ratio_T, terms.clipped_T)
            self._parts.append(torch.stack([row.float() for row in rows]))

    def gather(self) -> None:
        """Replace the values by those of all ranks, in rank order. Every rank must call it.

        Passes tensors only, so nothing is unpickled.
        """
        if not self._enabled:
            return
        own = self._values()
        sizes = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=self._device)
        sizes[dist.get_rank()] = own.shape[1]
        dist.all_reduce(sizes)
        first = int(sizes[: dist.get_rank()].sum())
        gathered = torch.zeros(3, int(sizes.sum()), device=self._device)
        gathered[:, first : first + own.shape[1]] = own
        dist.all_reduce(gathered)
        self._parts = [gathered]

    def by_sample(
        self, updates: Sequence[Sequence[Sample]], shares: Sequence[Sequence[Sequence[Microbatch]]]
    ) -> Stats:
        """The statistics of each sample of `updates`; empty if nothing was recorded.

        `shares` has the micro-batches of each update, for each rank.
        """
        values = self._values().cpu()
        if not values.numel():
            return ()
        order = [
            (index, sample)
            for share in shares
            for index, microbatches in enumerate(share)
            for sample in chain(*microbatches)
        ]
        parts = values.split([sample.sampled_tokens for _, sample in order], dim=1)
        found = {(index, id(sample)): part for (index, sample), part in zip(order, parts, strict=True)}
        return tuple(
            tuple(_token_stats(sample, found[index, id(sample)]) for sample in update)
            for index, update in enumerate(updates)
        )

    def _values(self) -> Tensor:
        """Rows: entropy, ratio, clipped."""
        return torch.cat([torch.zeros(3, 0, device=self._device), *self._parts], dim=1)


def _token_stats(sample: Sample, values: Tensor) -> TokenStats:
    entropy, ratio, clipped = values.tolist()
    return TokenStats(
        answers=sample.answers,
        replayed=sample.replayed,
        entropy=tuple(entropy),
        ratio=tuple(ratio),
        clipped=tuple(map(bool, clipped)),
    )
