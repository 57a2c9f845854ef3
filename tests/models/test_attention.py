"""Folded attention equals the attention of transformers, with and without a mask, including gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from arpo.models.attention import folded_attention
from devices import NEEDS_A_GPU


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize(("new", "seen", "masked"), [(1, 9, True), (5, 9, True), (9, 9, False)])
def test_equal_to_transformers(key_heads: int, new: int, seen: int, masked: bool) -> None:
    torch.manual_seed(0)
    module = SimpleNamespace(num_key_value_groups=4 // key_heads, is_causal=True)
    query = torch.randn(3, 4, new, 8)
    mask = torch.arange(seen) <= torch.tensor([2, 4, 3])[:, None, None, None] + torch.arange(new)[:, None]
    results = []
    for attention in (folded_attention, sdpa_attention_forward):
        torch.manual_seed(1)
        key, value = (torch.randn(3, key_heads, seen, 8, requires_grad=True) for _ in range(2))
        output, _ = attention(module, query, key, value, mask if masked else None, scaling=0.3)
        output.pow(2).sum().backward()
        results.append((output, key.grad, value.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@NEEDS_A_GPU
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_long_sequences_are_never_all_in_memory(dtype: torch.dtype) -> None:
    """Query heads share keys, which some fused kernels lack; 8,192 tokens have a gigabyte of scores."""
    module = SimpleNamespace(num_key_value_groups=2, is_causal=True)
    query = torch.randn(1, 4, 8192, 32, dtype=dtype, device="cuda", requires_grad=True)
    key, value = (torch.randn(1, 2, 8192, 32, dtype=dtype, device="cuda") for _ in range(2))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    folded_attention(module, query, key, value, None, scaling=0.3)[0].sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 2**27
