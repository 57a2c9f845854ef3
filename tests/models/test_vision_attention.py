"""Grouped vision attention equals stock transformers in values and gradients, without its loops."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen2_5_VLConfig
from transformers import Qwen2_5_VLForConditionalGeneration as Model

from arpo.models import families, vision_attention
from arpo.models.families import VisionLanguageModel
from arpo.models.vision_attention import Segments, install
from tiny_vlm import tiny_qwen3

PATCH_VALUES = 3 * 2 * 14 * 14
GRIDS = {
    "equal": [[1, 12, 16], [1, 12, 16]],
    "mixed": [[1, 12, 16], [1, 6, 20], [1, 12, 16], [1, 2, 2]],
}
LAYERS: tuple[list[int], ...] = ([0, 1, 2], [1], [])  # of Qwen2.5-VL's tower, which attend to whole images


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


def two_of_qwen3() -> tuple[VisionLanguageModel, VisionLanguageModel]:
    stock = tiny_qwen3(stock=True)
    grouped = copy.deepcopy(stock)
    install(grouped)
    return stock, grouped


def encode(model: VisionLanguageModel, pixels: torch.Tensor, grids: torch.Tensor) -> torch.Tensor:
    """The tower's features, those of all depths one beside the other."""
    output = model.model.visual(pixels, grid_thw=grids)
    return torch.cat([output.pooler_output, *getattr(output, "deepstack_features", ())], -1)


def pixels_for(model: VisionLanguageModel, grids: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    grids_N3 = torch.tensor(grids)
    values = model.model.visual.patch_embed.proj.weight[0].numel()
    return torch.randn(int(grids_N3.prod(-1).sum()), values), grids_N3


def same_gradients(
    stock: VisionLanguageModel, grouped: VisionLanguageModel, grids: list[list[int]], values_within: float
) -> None:
    pixels, grids_N3 = pixels_for(stock, grids)
    expected, actual = encode(stock, pixels, grids_N3), encode(grouped, pixels, grids_N3)
    torch.testing.assert_close(actual, expected, atol=values_within, rtol=0)

    weights = torch.randn_like(expected)
    for features in (expected, actual):
        (features * weights).sum().backward()
    for mine, theirs in zip(grouped.model.visual.parameters(), stock.model.visual.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("full_attention_layers", LAYERS)
@pytest.mark.parametrize("grids", GRIDS.values(), ids=GRIDS)
def test_values_and_gradients_equal_stock(full_attention_layers: list[int], grids: list[list[int]]) -> None:
    same_gradients(*two_models(full_attention_layers), grids, 1e-6)


@pytest.mark.parametrize("grids", GRIDS.values(), ids=GRIDS)
def test_qwen3_gives_stock_values_and_gradients_at_every_depth(grids: list[list[int]]) -> None:
    same_gradients(*two_of_qwen3(), grids, 1e-5)


@pytest.mark.parametrize("grids", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize(
    "models", [*(lambda layers=layers: two_models(layers) for layers in LAYERS), two_of_qwen3]
)
def test_attention_is_stock_bit_for_bit(
    models: Callable[[], tuple[VisionLanguageModel, VisionLanguageModel]], grids: list[list[int]]
) -> None:
    stock, grouped = models()
    del grouped.model.visual.patch_embed.forward  # the convolution itself: as a product it rounds otherwise
    pixels, grids_N3 = pixels_for(stock, grids)
    with torch.no_grad():
        assert torch.equal(encode(grouped, pixels, grids_N3), encode(stock, pixels, grids_N3))


def counting(monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """The calls of a function of the module, as a list that grows."""
    calls: list[int] = []
    counted = getattr(vision_attention, name)

    def count(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return counted(*args, **kwargs)

    monkeypatch.setattr(vision_attention, name, count)
    return calls


@pytest.mark.parametrize("models", [lambda: two_models([1]), two_of_qwen3], ids=["qwen2.5", "qwen3"])
def test_layouts_are_made_once_per_set_of_grids(
    models: Callable[[], tuple[VisionLanguageModel, VisionLanguageModel]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counting(monkeypatch, "_layout")
    _, grouped = models()
    one, other = [[1, 4, 4]], [[1, 4, 8]]
    for grids in (one, other, one, one):
        encode(grouped, *pixels_for(grouped, grids))
    assert len(made) == 2


def test_the_tower_reads_learned_positions_where_the_layout_says(monkeypatch: pytest.MonkeyPatch) -> None:
    stock, grouped = two_of_qwen3()
    looked_up = families.get_vision_interpolation_indices_and_weights

    def weightless(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        indices, weights = looked_up(*args, **kwargs)
        return indices, torch.zeros_like(weights)

    monkeypatch.setattr(families, "get_vision_interpolation_indices_and_weights", weightless)
    pixels, grids = pixels_for(stock, GRIDS["mixed"])
    with torch.no_grad():
        found = encode(grouped, pixels, grids)
        assert (found - encode(stock, pixels, grids)).abs().max() > 0.1
        stock.model.visual.pos_embed.weight.zero_()
        torch.testing.assert_close(found, encode(stock, pixels, grids), atol=1e-5, rtol=0)


def test_the_number_of_attention_calls_does_not_grow_with_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counting(monkeypatch, "_attend_segments")
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
