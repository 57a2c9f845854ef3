"""The lower bound of a training step, worked by hand."""

from __future__ import annotations

import pytest
from learner import needed_flops

from arpo.models.memory_plan import LinearAttention, ModelDimensions
from arpo.types import Sample
from tiny_vlm import screenshot, tiny_renderer

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
