"""A pool keeps the tokens of every sequence while sequences grow, move, leave and are compacted."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from arpo.models.attention import PackedSequences, Span, pool_attention
from arpo.models.token_pool import Extent, PoolStep, TokenPool, extent_size
from devices import NEEDS_A_GPU
from tiny_vlm import tiny_model


def new_pool(tokens: int) -> TokenPool:
    return TokenPool(tiny_model().config.text_config, tokens, 9, torch.float32, torch.device("cpu"))


def write(pool: TokenPool, name: str, number: float) -> None:
    """Fill the extent of a sequence, in the first and the last layer."""
    extent = pool.extents[name]
    for tensor in (pool.keys[0], pool.values[-1]):
        tensor[extent.start : extent.end] = number


def read(pool: TokenPool, name: str, tokens: int) -> set[float]:
    start = pool.extents[name].start
    parts = [tensor[start : start + tokens] for tensor in (pool.keys[0], pool.values[-1])]
    return {end.item() for part in parts for end in part.aminmax()}


def test_extents_are_multiples_of_256_tokens() -> None:
    assert [extent_size(tokens) for tokens in (1, 256, 257)] == [256, 256, 512]
    assert new_pool(1000).capacity == 768


def test_a_sequence_grows_where_it_is_if_there_is_room() -> None:
    pool = new_pool(1024)
    assert pool.reserve("a", 100)
    assert pool.reserve("a", 600)
    assert pool.extents == {"a": Extent(0, 768)}


def test_a_sequence_without_room_behind_it_moves_with_its_tokens() -> None:
    pool = new_pool(1280)
    assert pool.reserve("a", 200)
    assert pool.reserve("b", 200)
    write(pool, "a", 1.0)
    write(pool, "b", 2.0)
    assert pool.reserve("a", 300)
    assert pool.extents == {"a": Extent(512, 512), "b": Extent(256, 256)}
    assert read(pool, "a", 256) == {1.0}
    assert read(pool, "b", 256) == {2.0}


def test_scattered_room_is_compacted() -> None:
    """Gaps of 256 tokens before and after b; c needs 512."""
    pool = new_pool(1024)
    for number, name in enumerate("abcd"):
        assert pool.reserve(name, 256)
        write(pool, name, number)
    pool.free("a")
    pool.free("c")
    assert pool.reserve("e", 512)
    assert pool.extents == {"b": Extent(0, 256), "d": Extent(256, 256), "e": Extent(512, 512)}
    assert (read(pool, "b", 256), read(pool, "d", 256)) == ({1.0}, {3.0})


def test_a_growing_sequence_survives_its_own_compaction() -> None:
    """b may grow only over the gap before it, its own extent and the gap behind d."""
    pool = new_pool(1280)
    for number, name in enumerate("abcd"):
        assert pool.reserve(name, 256)
        write(pool, name, number)
    pool.free("a")
    assert pool.reserve("b", 700)
    assert pool.extents == {"c": Extent(0, 256), "d": Extent(256, 256), "b": Extent(512, 768)}
    assert [read(pool, name, 256) for name in "bcd"] == [{1.0}, {2.0}, {3.0}]


def test_a_full_pool_refuses_and_changes_nothing() -> None:
    pool = new_pool(512)
    assert pool.reserve("a", 300)
    assert not pool.reserve("b", 1)
    assert not pool.reserve("a", 513)
    assert pool.extents == {"a": Extent(0, 512)}
    pool.free("a")
    assert pool.reserve("b", 512)


def test_random_growth_loses_no_token() -> None:
    rng = random.Random(0)
    pool = new_pool(256 * 24)
    lengths: dict[str, int] = {}
    numbers: dict[str, float] = {}
    refused = 0
    for step in range(200):
        name = f"episode {rng.randrange(9)}"
        if rng.random() < 0.15:
            pool.free(name)
            lengths.pop(name, None)
        else:
            tokens = lengths.get(name, 0) + rng.randrange(1, 700)
            if pool.reserve(name, tokens):
                start = pool.extents[name].start
                numbers.setdefault(name, float(step))
                if name not in lengths:
                    numbers[name] = float(step)
                for tensor in (pool.keys[0], pool.values[-1]):
                    tensor[start + lengths.get(name, 0) : start + tokens] = numbers[name]
                lengths[name] = tokens
            else:
                refused += 1
        extents = sorted(pool.extents.values(), key=lambda extent: extent.start)
        assert all(one.end <= two.start for one, two in pairwise(extents))
        assert {owner: read(pool, owner, count) for owner, count in lengths.items()} == {
            owner: {numbers[owner]} for owner in lengths
        }
    assert 10 < refused < 150


def test_a_step_writes_new_keys_behind_the_cached_ones() -> None:
    """Worked numbers: 2 new tokens after 3 cached ones, and 1 new token of an empty sequence."""
    pool = new_pool(512)
    pool.reserve("a", 5)
    pool.reserve("b", 1)
    step = PoolStep.of(pool, ["a", "b"], [5, 1], [2, 1])
    heads, width = pool.keys[0].shape[1:]
    keys = torch.tensor([1.0, 2.0, 3.0])[None, None, :, None].expand(1, heads, 3, width)
    step.update(keys, 10 * keys, 0)
    assert pool.keys[0][:6, 0, 0].tolist() == [0, 0, 0, 1, 2, 0]
    assert pool.keys[0][256, 0, 0] == 3
    assert pool.values[0][[3, 4, 256], 0, 0].tolist() == [10, 20, 30]


def packed(lengths: list[int], widths: list[int], starts: list[int], device: str) -> PackedSequences:
    bounds = [sum(widths[:index]) for index in range(len(widths) + 1)]
    spans = tuple(map(Span, bounds[:-1], bounds[1:], starts, lengths))
    bounds_B, starts_B, lengths_B = (torch.tensor(part, device=device) for part in (bounds, starts, lengths))
    return PackedSequences(
        bounds_B=bounds_B, starts_B=starts_B, lengths_B=lengths_B, max_width=max(widths),
        max_length=max(lengths), spans=spans,
    )  # fmt: skip


def plain_attention(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Written out: the last len(query) of len(keys) tokens, each query head with its shared key head."""
    count, heads, width = query.shape
    output = torch.zeros_like(query)
    for row in range(count):
        seen = len(keys) - count + row + 1
        for head in range(heads):
            shared = head // (heads // keys.shape[1])
            weights = (keys[:seen, shared] @ query[row, head] / width**0.5).softmax(0)
            output[row, head] = weights @ values[:seen, shared]
    return output


def test_attention_to_a_pool_equals_plain_attention() -> None:
    torch.manual_seed(0)
    keys, values = torch.randn(2, 40, 2, 8, dtype=torch.float64)
    query = torch.randn(6, 4, 8, dtype=torch.float64)
    sequences = packed([9, 7, 4], [3, 1, 2], [20, 5, 0], "cpu")
    output = pool_attention(query, keys, values, sequences, 8**-0.5)
    expected = torch.cat(
        [
            plain_attention(query[:3], keys[20:29], values[20:29]),
            plain_attention(query[3:4], keys[5:12], values[5:12]),
            plain_attention(query[4:], keys[:4], values[:4]),
        ]
    )
    torch.testing.assert_close(output, expected)


@NEEDS_A_GPU
@pytest.mark.parametrize("widths", [[1, 1, 1], [300, 1, 7], [1500, 20, 1100]])
def test_the_kernels_of_a_gpu_agree_with_masked_attention(widths: list[int]) -> None:
    """Decoding, short and long prefill; starts are in any order."""
    torch.manual_seed(0)
    keys, values = torch.randn(2, 8192, 4, 128, device="cuda")
    query = torch.randn(sum(widths), 28, 128, device="cuda")
    sequences = packed([2500, 900, 1100], widths, [4096, 0, 2048], "cuda")
    expected = pool_attention(query, keys, values, sequences, 128**-0.5)
    output = pool_attention(
        query.bfloat16(), keys.bfloat16(), values.bfloat16(), sequences, 128**-0.5
    ).float()
    torch.testing.assert_close(output, expected, atol=0.02, rtol=0.02)
