"""The lower bound of a training step, worked by hand."""

from __future__ import annotations

import pytest
from learner import needed_flops, used_dimensions

from arpo.models.memory_plan import LinearAttention, ModelDimensions, measure_dimensions
from arpo.types import Sample
from tiny_vlm import QWEN3_5, QWEN3_5_MOE, screenshot, tiny_of, tiny_renderer

HYBRID = ModelDimensions(
    vision_parameters=1000,
    language_parameters=5000,
    layer_parameters=850,
    non_layer_parameters=1600,
    adapter_parameters=0,
    layers=4,
    hidden=8,
    query_width=16,
    key_width=8,
    intermediate=24,
    vocabulary=100,
    vision_layers=3,
    vision_full_layers=2,
    vision_hidden=10,
    vision_intermediate=30,
    linear=LinearAttention(
        layers=3,
        key_heads=1,
        value_heads=2,
        key_head=4,
        value_head=4,
        state_values=32,
        window_values=48,
        kernels=False,
    ),
)


@pytest.mark.parametrize(("train", "language", "tower"), [("all", 3, 3), ("language", 3, 1), ("lora", 2, 1)])
def test_only_layers_with_full_attention_are_quadratic(train: str, language: int, tower: int) -> None:
    """20 tokens, five of them sampled; a screenshot with 6 x 8 patches."""
    sample = Sample(
        token_ids=(7,) * 20,
        mask=(*(False,) * 15, *(True,) * 5),
        images=(screenshot(1),),
        behaviour_logprobs=(-1.0,) * 5,
        advantage=1.0,
        weight=1.0,
        replayed=False,
    )
    products, head, attention = 2 * (5000 - 1600) * 20, 2 * 100 * 8 * 5, 2 * 20**2 * 16 * 1
    patches = 2 * 1000 * 48 + 4 * 48**2 * 10 * 2
    expected = language * (products + head + attention) + tower * patches
    assert needed_flops(HYBRID, sample, tiny_renderer(), train) == expected


def test_experts_that_a_token_does_not_choose_are_not_counted() -> None:
    """A token chooses two of four experts, each of three matrices of 64 x 32, in each of three layers."""
    mixture, dense = tiny_of(QWEN3_5_MOE), tiny_of(QWEN3_5)
    dims = measure_dimensions(mixture, lora_rank=1)
    used = used_dimensions(dims, mixture.config)
    assert dims.layer_parameters - used.layer_parameters == 2 * 3 * 64 * 32
    assert dims.language_parameters - used.language_parameters == 3 * 2 * 3 * 64 * 32
    dims = measure_dimensions(dense, lora_rank=1)
    assert used_dimensions(dims, dense.config) == dims
