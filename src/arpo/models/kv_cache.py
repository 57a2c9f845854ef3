"""Cache of the keys and values of many sequences, one slot each.

Each layer has a pair of tensors, [slots, heads, capacity, width]. The tokens of a slot start at position 0;
positions beyond its length are never attended to. The cache does not store lengths: the caller of `step`
states the position of the new tokens. Layers with linear attention have `LinearStates` instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from arpo.models.families import full_layers, head_width, linear_layers

_LENGTH_MULTIPLE = 16  # attended lengths are multiples of this: masks stay aligned


def capacity_for(tokens: int) -> int:
    """Positions per slot for this many tokens: a power of two, since a cache grows by doubling."""
    return max(_LENGTH_MULTIPLE, 1 << (tokens - 1).bit_length())


def state_shapes(text: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of window and state of one sequence in a layer with linear attention."""
    key, value = text.linear_key_head_dim, text.linear_value_head_dim
    heads = text.linear_num_value_heads
    channels = 2 * text.linear_num_key_heads * key + heads * value
    return (channels, text.linear_conv_kernel_dim - 1), (heads, key, value)


class LinearStates:
    """Convolution windows and recurrent states of the layers with linear attention, one row per sequence.

    A state comes after all tokens of its sequence: it cannot be rewound, except to the beginning.
    """

    def __init__(self, text: Any, rows: int, dtype: torch.dtype, device: torch.device) -> None:
        layers = linear_layers(text)
        self._index = {layer: index for index, layer in enumerate(layers)}
        self._windows: list[Tensor] = []  # inputs of the convolution, [rows, channels, kernel - 1]
        self._states: list[Tensor] = []  # [rows, heads, key width, value width]
        for _ in layers:
            window, state = state_shapes(text)
            self._windows.append(torch.zeros((rows, *window), dtype=dtype, device=device))
            self._states.append(torch.zeros((rows, *state), dtype=torch.float32, device=device))

    def __bool__(self) -> bool:
        return bool(self._index)

    @property
    def tensors(self) -> list[Tensor]:
        return [*self._windows, *self._states]

    def clear(self, rows: list[int]) -> None:
        for tensor in self.tensors if rows else ():
            tensor[rows] = 0

    def grow(self, more: int) -> None:
        for tensors in (self._windows, self._states):
            for layer, old in enumerate(tensors):
                tensors[layer] = torch.cat([old, old.new_zeros((more, *old.shape[1:]))])

    def read(self, layer: int, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Window and state of these rows."""
        index = self._index[layer]
        return self._windows[index][rows], self._states[index][rows]

    def write(self, layer: int, rows: slice | Tensor, window: Tensor, state: Tensor) -> None:
        index = self._index[layer]
        self._windows[index][rows], self._states[index][rows] = window, state


class SlotCache:
    """`text` is the language model's configuration. The cache grows beyond `slots`. Example with two slots:

    step = cache.step(slots_B=[0, 1], starts_B=[20, 0], widths_B=[11, 14])
    hidden_states(model, embeds_BTD, positions_3BT, step.mask(), step)
    """

    def __init__(self, text: Any, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        width = head_width(text)
        empty = torch.zeros((slots, text.num_key_value_heads, 0, width), dtype=dtype, device=device)
        self.index = {layer: index for index, layer in enumerate(full_layers(text))}
        self.keys = [empty] * len(self.index)
        self.values = [empty] * len(self.index)
        self.linear = LinearStates(text, slots, dtype, device)

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[2]

    def reserve(self, tokens: int, slots: int = 0) -> None:
        """Grow to this many slots of at least this many tokens, with zeros: masked NaNs would still spread.

        Layers grow one after the other, so at most one exists twice at a time.
        """
        rows = self.keys[0].shape[0]
        if tokens <= self.capacity and slots <= rows:
            return
        more_tokens = capacity_for(max(tokens, self.capacity)) - self.capacity
        more_slots = max(0, (1 << (slots - 1).bit_length()) - rows) if slots > rows else 0
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = torch.nn.functional.pad(old, (0, 0, 0, more_tokens, 0, 0, 0, more_slots))
        self.linear.grow(more_slots)

    def move(self, slot: int, to: int) -> None:
        """Copy the tokens of a slot to another one."""
        for layer in (*self.keys, *self.values, *self.linear.tensors):
            layer[to] = layer[slot]

    def step(self, slots_B: Sequence[int], starts_B: Sequence[int], widths_B: Sequence[int]) -> CacheStep:
        """Prepare the next `widths_B` tokens of these slots from `starts_B` on, padded to the largest width.

        The cache grows for tokens, not for padding. Padding beyond its end is written to the last position,
        which no sequence uses. A slot that starts at 0 gets an empty state.
        """
        device, width = self.keys[0].device, max(widths_B)
        longest = max(start + count for start, count in zip(starts_B, widths_B, strict=True))
        self.reserve(1 + longest, 1 + max(slots_B))
        first, consecutive = slots_B[0], list(slots_B) == list(range(slots_B[0], slots_B[0] + len(slots_B)))
        index_B = torch.tensor(slots_B, device=device)
        self.linear.clear([slot for slot, start in zip(slots_B, starts_B, strict=True) if start == 0])
        cache_positions_BT = torch.tensor(starts_B, device=device)[:, None] + torch.arange(
            width, device=device
        )
        return CacheStep(
            self,
            rows=slice(first, first + len(slots_B)) if consecutive else index_B,
            index_B1=index_B[:, None],
            cache_positions_BT=cache_positions_BT.clamp(max=self.capacity - 1),
            length=-(-longest // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE,
            widths_B=torch.tensor(widths_B, device=device) if self.linear and min(widths_B) < width else None,
        )


class CacheStep:
    """Cache of one forward pass: it writes the new keys and returns all keys of its rows.

    Consecutive rows are views; other rows are gathered. `widths_B` are the new tokens of each row if linear
    attention has to know the padding; None means that there is none.
    """

    def __init__(
        self,
        cache: SlotCache,
        *,
        rows: slice | Tensor,
        index_B1: Tensor,
        cache_positions_BT: Tensor,
        length: int,
        widths_B: Tensor | None = None,
    ) -> None:
        self._cache = cache
        self.linear = cache.linear
        self.rows = rows
        self._index_B1 = index_B1
        self._cache_positions_BT = cache_positions_BT
        self._length = length
        self.widths_B = widths_B

    def mask(self) -> Tensor:
        """[B, 1, T, length]: true up to the position of the new token."""
        seen_L = torch.arange(self._length, device=self._cache_positions_BT.device)
        return seen_L <= self._cache_positions_BT[:, None, :, None]

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Cache interface of transformers: takes [B, heads, T, width], returns all keys of the rows."""
        index = self._cache.index[layer]
        keys, values = self._cache.keys[index], self._cache.values[index]
        keys[self._index_B1, :, self._cache_positions_BT] = key.transpose(1, 2)
        values[self._index_B1, :, self._cache_positions_BT] = value.transpose(1, 2)
        return keys[self.rows, :, : self._length], values[self.rows, :, : self._length]
