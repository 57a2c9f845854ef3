"""Keys and values of many sequences in slots, each as long as it is.

One pair of tensors a layer, [slots, heads, capacity, width]; a slot's tokens begin at place 0 and what lies
beyond its length is never attended to. The cache does not know lengths: whoever steps says where the new
tokens go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from arpo.models.families import head_width

_ROUND = 16  # attended lengths are multiples of this, so that masks stay aligned


def places(tokens: int) -> int:
    """How many a slot has for this many tokens: a cache grows by doubling."""
    return max(_ROUND, 1 << (tokens - 1).bit_length())


class SlotCache:
    """`text` is the language model's configuration."""

    def __init__(self, text: Any, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        width = head_width(text)
        empty = torch.zeros((slots, text.num_key_value_heads, 0, width), dtype=dtype, device=device)
        self.slots = slots
        self.keys = [empty] * text.num_hidden_layers
        self.values = [empty] * text.num_hidden_layers

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[2]

    def reserve(self, tokens: int) -> None:
        """Room for this many tokens in every slot; zeros: masked NaNs are still NaNs.

        One layer after the other, so that never all are there twice.
        """
        if tokens <= self.capacity:
            return
        more = places(tokens) - self.capacity
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = torch.nn.functional.pad(old, (0, 0, 0, more))

    def step(self, slots_B: Sequence[int], starts_B: Sequence[int], widths_B: Sequence[int]) -> CacheStep:
        """The next tokens of these slots, so many of each from its own start on, padded to one width.

        The cache grows for tokens, not for padding: what of that would lie beyond its end goes to the last
        place, which is nobody's.
        """
        device, width = self.keys[0].device, max(widths_B)
        longest = max(start + count for start, count in zip(starts_B, widths_B, strict=True))
        self.reserve(1 + longest)
        first, consecutive = slots_B[0], list(slots_B) == list(range(slots_B[0], slots_B[0] + len(slots_B)))
        index_B = torch.tensor(slots_B, device=device)
        places_BT = torch.tensor(starts_B, device=device)[:, None] + torch.arange(width, device=device)
        return CacheStep(
            self,
            rows=slice(first, first + len(slots_B)) if consecutive else index_B,
            index_B1=index_B[:, None],
            places_BT=places_BT.clamp(max=self.capacity - 1),
            length=-(-longest // _ROUND) * _ROUND,
        )


class CacheStep:
    """What one forward pass sees as its cache: it writes the new keys and reads all of its rows' keys.

    Consecutive rows are read in place; others are gathered.
    """

    def __init__(
        self, cache: SlotCache, *, rows: slice | Tensor, index_B1: Tensor, places_BT: Tensor, length: int
    ) -> None:
        self._cache = cache
        self._rows = rows
        self._index_B1 = index_B1
        self._places_BT = places_BT
        self._length = length

    def mask(self) -> Tensor:
        """True where a new token may look: its own place and all before. [B, 1, T, length]"""
        seen_L = torch.arange(self._length, device=self._places_BT.device)
        return seen_L <= self._places_BT[:, None, :, None]

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """The library's cache protocol: [B, heads, T, width] in, everything these rows hold out."""
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        keys[self._index_B1, :, self._places_BT] = key.transpose(1, 2)
        values[self._index_B1, :, self._places_BT] = value.transpose(1, 2)
        return keys[self._rows, :, : self._length], values[self._rows, :, : self._length]
