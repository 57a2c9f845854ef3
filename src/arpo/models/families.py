"""What sets the two supported families of models apart: Qwen2.5-VL and Qwen3-VL, both dense.

Loading, rendering, attention, caches, engine and learner are one code for both; what differs is said here, in
terms of transformers' own modules. Mixtures of experts and video are not supported.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_interpolation_indices_and_weights,
    get_vision_window_index,
)

VisionLanguageModel: TypeAlias = Qwen2_5_VLForConditionalGeneration | Qwen3VLForConditionalGeneration

IMAGE_BOUNDS, WINDOW_BOUNDS = "cu_seqlens", "cu_window_seqlens"


class Family(Protocol):
    def tower_arguments(self, visual: Any, grids_N3: Tensor) -> dict[str, Any]:
        """What the vision tower derives from the grids of a batch of images, as its forward takes it."""

    def bounds(self, visual: Any, layer: int) -> str:
        """Which of those arguments bounds the runs of patches that attend to themselves in this layer."""

    def image_features(self, output: Any) -> Tensor:
        """[image tokens, levels, width]: level 0 fills the image's slots among the embeddings, each further
        one is added to what the language model's next layer gives there."""

    def attention_mask(self, mask: Tensor | None) -> Any:
        """The language model's argument for a mask that is ready, or for plain causal attention."""


class Qwen2_5VL:
    """Most layers of the tower attend within windows; one level of features."""

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

    def bounds(self, visual: Any, layer: int) -> str:
        return IMAGE_BOUNDS if layer in visual.fullatt_block_indexes else WINDOW_BOUNDS

    def image_features(self, output: Any) -> Tensor:
        features_ND: Tensor = output.pooler_output
        return features_ND[:, None]

    def attention_mask(self, mask: Tensor | None) -> Any:
        return {"full_attention": mask}


class Qwen3VL:
    """The tower adds learned positions, stretched over each image, and gives features of several depths."""

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

    def bounds(self, visual: Any, layer: int) -> str:
        return IMAGE_BOUNDS

    def image_features(self, output: Any) -> Tensor:
        return torch.stack([output.pooler_output, *output.deepstack_features], 1)

    def attention_mask(self, mask: Tensor | None) -> Any:
        return mask


FAMILIES: dict[str, Family] = {"qwen2_5_vl": Qwen2_5VL(), "qwen3_vl": Qwen3VL()}  # by config.model_type


def family_of(model: VisionLanguageModel) -> Family:
    return FAMILIES[model.config.model_type]


def head_width(text: Any) -> int:
    """Of one attention head, by a language model's configuration; some set it apart from the hidden size."""
    width: int = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return width
