"""Differences between the supported model families: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5.

Loading, rendering, attention, caches, engine and learner share one code path. A `Family` states the
differences in terms of the modules of transformers. Experts of a mixture are frozen. Video is not supported.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from transformers import (
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLForConditionalGeneration,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLForConditionalGeneration,
)
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_window_index,
)

VisionLanguageModel: TypeAlias = (
    Qwen2VLForConditionalGeneration
    | Qwen2_5_VLForConditionalGeneration
    | Qwen3VLForConditionalGeneration
    | Qwen3_5ForConditionalGeneration
    | Qwen3_5MoeForConditionalGeneration
)

IMAGE_BOUNDS, WINDOW_BOUNDS = "cu_seqlens", "cu_window_seqlens"


class Family(Protocol):
    def tower_arguments(self, visual: Any, grids_N3: Tensor) -> dict[str, Any]:
        """Arguments of the vision tower derived from the image grids of a batch."""

    def bounds_argument(self, visual: Any, layer: int) -> str:
        """Name of the argument with the segment boundaries of this layer; patches attend within a segment."""

    def image_features(self, output: Any) -> Tensor:
        """Features as [image tokens, levels, width].

        Level 0 replaces the embeddings at image positions. Level n is added to the output of layer n - 1
        there.
        """

    def attention_mask(self, mask: Tensor | None) -> Any:
        """The language model's mask argument; None means causal attention."""


class Qwen2VL:
    """Every layer of the tower attends to the whole image. Features have one level."""

    def tower_arguments(self, visual: Any, grids_N3: Tensor) -> dict[str, Any]:
        return {IMAGE_BOUNDS: get_vision_cu_seqlens(grids_N3)}

    def bounds_argument(self, visual: Any, layer: int) -> str:
        return IMAGE_BOUNDS

    def image_features(self, output: Any) -> Tensor:
        features_ND: Tensor = output.pooler_output
        return features_ND[:, None]

    def attention_mask(self, mask: Tensor | None) -> Any:
        return {"full_attention": mask}


class Qwen2_5VL(Qwen2VL):
    """Most layers of the tower attend within windows."""

    def tower_arguments(self, visual: Any, grids_N3: Tensor) -> dict[str, Any]:
        window_index, window_bounds = get_vision_window_index(
            grids_N3,
            spatial_merge_size=visual.spatial_merge_size,
            window_size=visual.window_size,
            patch_size=visual.patch_size,
        )
        return {
            IMAGE_BOUNDS: get_vision_cu_seqlens(grids_N3),
            "window_index": window_index.to(grids_N3.device),
            WINDOW_BOUNDS: window_bounds,
        }

    def bounds_argument(self, visual: Any, layer: int) -> str:
        return IMAGE_BOUNDS if layer in visual.fullatt_block_indexes else WINDOW_BOUNDS


class Qwen3VL:
    """The tower adds learned positions, interpolated to each image. Features have several levels."""

    def tower_arguments(self, visual: Any, grids_N3: Tensor) -> dict[str, Any]:
        indices, weights = get_vision_interpolation_indices_and_weights(
            grids_N3,
            num_grid_per_side=visual.num_grid_per_side,
            mode=visual.interpolation_mode,
            align_corners=visual.interpolation_align_corners,
            spatial_merge_size=visual.spatial_merge_size,
        )
        return {
            IMAGE_BOUNDS: get_vision_cu_seqlens(grids_N3),
            "interp_indices": indices,
            "interp_weights": weights,
        }

    def bounds_argument(self, visual: Any, layer: int) -> str:
        return IMAGE_BOUNDS

    def image_features(self, output: Any) -> Tensor:
        return torch.stack([output.pooler_output, *output.deepstack_features], 1)

    def attention_mask(self, mask: Tensor | None) -> Any:
        return mask


class Qwen3_5(Qwen3VL):
    """The tower of Qwen3-VL with one level of features. Most language layers have gated linear attention."""

    def image_features(self, output: Any) -> Tensor:
        features_ND: Tensor = output.pooler_output
        return features_ND[:, None]

    def attention_mask(self, mask: Tensor | None) -> Any:
        return {"full_attention": mask, "linear_attention": None}


FAMILIES: dict[str, Family] = {  # by config.model_type
    "qwen2_vl": Qwen2VL(),
    "qwen2_5_vl": Qwen2_5VL(),
    "qwen3_vl": Qwen3VL(),
    "qwen3_5": Qwen3_5(),
    "qwen3_5_moe": Qwen3_5(),
}


def family_of(model: VisionLanguageModel) -> Family:
    return FAMILIES[model.config.model_type]


def head_width(text: Any) -> int:
    """Width of one attention head; some configurations set it independently of the hidden size."""
    width: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return width


def linear_layers(text: Any) -> list[int]:
    """The language layers with gated linear attention."""
    kinds = getattr(text, "layer_types", None) or ()
    return [layer for layer, kind in enumerate(kinds) if kind == "linear_attention"]


def full_layers(text: Any) -> list[int]:
    """The language layers with full attention, which have keys and values."""
    return [layer for layer in range(text.num_hidden_layers) if layer not in linear_layers(text)]


def vision_widths(tower: Any) -> tuple[int, int]:
    """(hidden, intermediate) width of a vision tower. In Qwen2-VL, hidden_size is the language model's."""
    if hasattr(tower, "embed_dim"):
        return tower.embed_dim, int(tower.embed_dim * tower.mlp_ratio)
    return tower.hidden_size, tower.intermediate_size
