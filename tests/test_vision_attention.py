"""Grouped vision attention gives stock transformers' values and gradients, without its loops."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLConfig
from transformers import Qwen2_5_VLForConditionalGeneration as Model

from arpo.models import vision_attention
from arpo.models.vision_attention import Segments, install

PATCH_VALUES = 3 * 2 * 14 * 14


def two_models(full_attention_layers: list[int]) -> tuple[Model, Model]:
    """A stock model and its twin with the grouped attention; windows of 4 by 4 merged patches."""
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        },
        vision_config={
            "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32,
            "window_size": 112, "fullatt_block_indexes": full_attention_layers,
        },
    )  # fmt: skip
    torch.manual_seed(0)
    stock = Model(config).float().eval()
    grouped = copy.deepcopy(stock)
    install(grouped)
    return stock, grouped


def encode(model: Model, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
    features: torch.Tensor = model.model.visual(pixels, grid_thw=grids).pooler_output
    return features


@pytest.mark.parametrize("full_attention_layers", [[0, 1, 2], [1], []])
@pytest.mark.parametrize(
    "grids",
    [[[1, 12, 16], [1, 12, 16]], [[1, 12, 16], [1, 6, 20], [1, 12, 16], [1, 2, 2]]],
    ids=["equal", "mixed"],
)
def test_values_and_gradients_equal_stock(full_attention_layers: list[int], grids: list[list[int]]) -> None:
    stock, grouped = two_models(full_attention_layers)
    grids_N3 = torch.tensor(grids)
    pixels = torch.randn(int(grids_N3.prod(-1).sum()), PATCH_VALUES)
    expected, actual = encode(stock, pixels, grids_N3), encode(grouped, pixels, grids_N3)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)

    weights = torch.randn_like(expected)
    for features in (expected, actual):
        (features * weights).sum().backward()
    for mine, theirs in zip(grouped.model.visual.parameters(), stock.model.visual.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-5)


def counting(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The calls of a function of the module, as a list that grows."""
    calls: list[int] = []
    counted = getattr(vision_attention, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return counted(*args, **kwargs)

    monkeypatch.setattr(vision_attention, name, count)
    return calls


def test_layouts_are_made_once_per_set_of_grids(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counting(monkeypatch, "_layout")
    _, grouped = two_models([1])
    one, other = torch.tensor([[1, 4, 4]]), torch.tensor([[1, 4, 8]])
    for grids in (one, other, one, one.clone()):
        encode(grouped, torch.randn(int(grids.prod()), PATCH_VALUES), grids)
    assert len(made) == 2


def test_the_number_of_attention_calls_does_not_grow_with_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch, "scaled_dot_product_attention")
    _, grouped = two_models([1])
    for images in (1, 9):
        calls.clear()
        grids = torch.tensor([[1, 12, 16]] * images)
        encode(grouped, torch.randn(images * 192, PATCH_VALUES), grids)
        assert len(calls) == 5  # two windowed layers with windows of 64 and 32 patches, one full layer


def test_a_copy_of_a_model_has_attention_of_its_own() -> None:
    stock, grouped = two_models([1])
    twin = copy.deepcopy(grouped)
    grids, pixels = torch.tensor([[1, 4, 8]]), torch.randn(32, PATCH_VALUES)
    with torch.no_grad():
        for model in (twin, stock):
            model.model.visual.blocks[1].attn.proj.weight.mul_(2)
            model.model.visual.patch_embed.proj.weight.mul_(2)
        assert not torch.allclose(encode(grouped, pixels, grids), encode(twin, pixels, grids))
        torch.testing.assert_close(
            encode(twin, pixels, grids), encode(stock, pixels, grids), atol=1e-6, rtol=0
        )


def test_installing_leaves_the_library_and_the_weights_alone() -> None:
    stock, grouped = two_models([1])
    assert "forward" not in vars(stock.model.visual.blocks[0].attn)
    assert list(grouped.state_dict()) == list(stock.state_dict())
    hooks = len(grouped.model.visual._forward_pre_hooks)
    install(grouped)
    assert len(grouped.model.visual._forward_pre_hooks) == hooks == 1


def test_segments_group_by_length() -> None:
    segments = Segments.of(torch.tensor([0, 4, 6, 10]))
    assert segments.counts == ((4, 2), (2, 1))
    assert segments.order.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 4, 5]
    assert segments.inverse.tolist() == [0, 1, 2, 3, 8, 9, 4, 5, 6, 7]
