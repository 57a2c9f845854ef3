"""Keys and values of many sequences in one pool of tokens: memory follows tokens, not sequences.

Each sequence has one contiguous extent. A growing sequence may have to move, and the pool is compacted
if its free memory is scattered. A move costs about a millisecond for a long sequence of a 7B model. In return
the fastest attention kernel reads the keys: it needs contiguous ones (see docs/performance.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Self

import torch
from torch import Tensor

from arpo.models.attention import PackedSequences, Span, pool_attention
from arpo.models.families import full_layers, head_width
from arpo.models.kv_cache import LinearStates

EXTENT_MULTIPLE = 256  # tokens; a decoding sequence outgrows its extent at most once per this many tokens


@dataclass(frozen=True, slots=True)
class Extent:
    start: int
    size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class TokenPool:
    """`text` is the language model's configuration. Linear attention has a row for each of the `sequences`.

    if pool.reserve("episode 1", 300):
        start = pool.extents["episode 1"].start
    """

    def __init__(
        self, text: Any, tokens: int, sequences: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.capacity = tokens // EXTENT_MULTIPLE * EXTENT_MULTIPLE
        # One more token, and one more row of states: padding rows of a captured graph write there.
        shape = (self.capacity + 1, text.num_key_value_heads, head_width(text))
        self.index = {layer: index for index, layer in enumerate(full_layers(text))}
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in self.index]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in self.index]
        self.extents: dict[str, Extent] = {}
        self.sequences = sequences
        self.linear = LinearStates(text, sequences + 1, dtype, device)
        self.rows: dict[str, int] = {}  # of `linear`

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values, *self.linear.tensors))

    def reserve(self, name: str, tokens: int) -> bool:
        """Give a sequence room for this many tokens; it keeps those it has. False if there is no room."""
        size = extent_size(tokens)
        old = self.extents.get(name)
        if old is not None and size <= old.size:
            return True
        if old is None and len(self.rows) == self.sequences:
            return False
        others = sorted(
            (extent for owner, extent in self.extents.items() if owner != name), key=lambda e: e.start
        )
        if size > self.capacity - sum(extent.size for extent in others):
            return False
        start = self._find_gap(others, size, old)
        if start is None:
            start = self._compact(name)
        elif old is not None and start != old.start:
            self._move(old, start)
        self.extents[name] = Extent(start, size)
        if old is None:
            self.rows[name] = min({*range(self.sequences)} - {*self.rows.values()})
        return True

    def free(self, name: str) -> None:
        self.extents.pop(name, None)
        self.rows.pop(name, None)

    def clear(self) -> None:
        """Free all sequences."""
        self.extents.clear()
        self.rows.clear()

    def _find_gap(self, others: list[Extent], size: int, old: Extent | None) -> int | None:
        """Start of the first large enough gap between the other extents, best the current start."""
        edges = [0, *(extent.end for extent in others)]
        limits = [*(extent.start for extent in others), self.capacity]
        gaps = list(zip(edges, limits, strict=True))
        if old is not None and any(edge <= old.start and old.start + size <= end for edge, end in gaps):
            return old.start
        return next((edge for edge, end in gaps if end - edge >= size), None)

    def _move(self, old: Extent, start: int) -> None:
        overlaps = start < old.end and old.start < start + old.size
        for tensor in (*self.keys, *self.values):
            source = tensor[old.start : old.end]
            tensor[start : start + old.size] = source.clone() if overlaps else source

    def _compact(self, last: str) -> int:
        """Close all gaps. The extent of `last` becomes the last one; returns its start."""
        order = sorted(self.extents, key=lambda name: (name == last, self.extents[name].start))
        sources: list[Tensor] = []
        end = 0
        for name in order:
            extent = self.extents[name]
            sources.append(torch.arange(extent.start, extent.end))
            self.extents[name] = Extent(end, extent.size)
            end += extent.size
        source_N = torch.cat(sources).to(self.keys[0].device)
        for tensor in (*self.keys, *self.values):
            tensor[:end] = tensor[source_N]
        return self.extents[last].start if last in self.extents else end


class PoolStep:
    """Cache of one forward pass over new tokens of several sequences, packed into one row.

    It writes the new keys. `attend` replaces the attention over the returned keys: each new token attends to
    all earlier tokens of its sequence. `rows_B` are the rows of the sequences in the pool's linear states.
    """

    def __init__(
        self, pool: TokenPool, sequences: PackedSequences, written_N: Tensor, rows_B: Tensor
    ) -> None:
        self._pool = pool
        self.sequences = sequences
        self._written_N = written_N
        self.linear = pool.linear
        self.rows_B = rows_B

    @classmethod
    def of(cls, pool: TokenPool, names: Sequence[str], lengths: Sequence[int], widths: Sequence[int]) -> Self:
        """The last `widths` tokens of these sequences are new; `lengths` include them.

        The linear states of a sequence without earlier tokens are cleared.
        """
        starts = [pool.extents[name].start for name in names]
        bounds = list(accumulate(widths, initial=0))
        spans = tuple(map(Span, bounds[:-1], bounds[1:], starts, lengths))
        written = [torch.arange(span.start + span.seen, span.start + span.length) for span in spans]
        rows = [pool.rows[name] for name in names]
        pool.linear.clear([row for row, span in zip(rows, spans, strict=True) if not span.seen])
        device = pool.keys[0].device
        bounds_B, starts_B, lengths_B, rows_B = (
            torch.tensor(part, device=device) for part in (bounds, starts, lengths, rows)
        )
        sequences = PackedSequences(
            bounds_B=bounds_B,
            starts_B=starts_B,
            lengths_B=lengths_B,
            max_width=max(widths),
            max_length=max(lengths),
            spans=spans,
        )
        return cls(pool, sequences, torch.cat(written).to(device), rows_B)

    @classmethod
    def decoding(
        cls, pool: TokenPool, starts_B: Tensor, lengths_B: Tensor, rows_B: Tensor, max_length: int
    ) -> Self:
        """One new token per sequence, for a captured graph. No length exceeds `max_length`."""
        sequences = PackedSequences(
            bounds_B=torch.arange(len(starts_B) + 1, device=starts_B.device),
            starts_B=starts_B,
            lengths_B=lengths_B,
            max_width=1,
            max_length=max_length,
        )
        return cls(pool, sequences, starts_B + lengths_B - 1, rows_B)

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Cache interface of transformers: takes [1, heads, N, width]."""
        index = self._pool.index[layer]
        self._pool.keys[index][self._written_N] = key[0].transpose(0, 1)
        self._pool.values[index][self._written_N] = value[0].transpose(0, 1)
        return key, value

    def attend(self, query: Tensor, layer: int, scaling: float) -> Tensor:
        """Attention of the new tokens: [1, heads, N, width] → [1, N, heads, width]."""
        index = self._pool.index[layer]
        keys, values = self._pool.keys[index], self._pool.values[index]
        return pool_attention(query[0].transpose(0, 1), keys, values, self.sequences, scaling)[None]


def extent_size(tokens: int) -> int:
    return -(-tokens // EXTENT_MULTIPLE) * EXTENT_MULTIPLE
