"""Slots keep their tokens, and the cache grows for tokens, not for padding."""

from __future__ import annotations

import torch

from arpo.models.kv_cache import SlotCache, capacity_for
from tiny_vlm import tiny_model


def test_a_cache_grows_by_doubling() -> None:
    assert [capacity_for(tokens) for tokens in (1, 16, 17, 32, 33)] == [16, 16, 32, 32, 64]


def test_padding_neither_grows_a_cache_nor_touches_a_token() -> None:
    """Slot 0 has 20 tokens and gets 11; slot 1 is new and gets 14, so slot 0 is padded beyond position 32."""
    text = tiny_model().config.text_config
    cache = SlotCache(text, 2, torch.float32, torch.device("cpu"))
    heads, width = cache.keys[0].shape[1], cache.keys[0].shape[3]

    def write(slots: list[int], starts: list[int], widths: list[int]) -> torch.Tensor:
        """Token n of a slot gets the key n + 1, padding gets -1."""
        step = cache.step(slots, starts, widths)
        numbers_BT = torch.full((len(slots), max(widths)), -1.0)
        for row, (start, count) in enumerate(zip(starts, widths, strict=True)):
            numbers_BT[row, :count] = torch.arange(start, start + count) + 1
        keys = numbers_BT[:, None, :, None].expand(-1, heads, -1, width)
        seen_BL, _ = step.update(keys, keys, 0)
        mask_BTL = step.mask()[:, 0]
        assert mask_BTL.shape[2] == seen_BL.shape[2] <= cache.capacity
        for row, count in enumerate(widths):
            assert seen_BL[row, 0, mask_BTL[row, count - 1], 0].tolist() == list(
                range(1, starts[row] + count + 1)
            )
        return seen_BL

    write([0], [0], [20])
    write([0, 1], [20, 0], [11, 14])
    assert cache.capacity == 32
    write([0, 1], [31, 14], [1, 1])
    assert cache.capacity == 64
