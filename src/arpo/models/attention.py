"""Attention of the language model, and the choice of the attention kernel for both towers.

transformers copies keys and values for every query head whenever there is a mask. In decoding, the copy
moves more memory than everything else. `folded_attention` folds the query heads of one key head into its
queries instead. Sequences packed into one row attend only to themselves. `install` changes one model
instance, through the registry of attention functions in transformers.

`attention` chooses the kernel. For long sequences cuDNN's kernel is nearly twice as fast as torch's default.
Its setup cost per sequence length makes it too slow for decoding, where the length grows by one each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from arpo.models.families import VisionLanguageModel

LONG_KEYS = 1024  # keys from which the choice of kernel matters and attention outputs are kept
_FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
_IMPLEMENTATION = "arpo_folded"


def install(model: VisionLanguageModel) -> None:
    """Set the attention of this instance's language model to `folded_attention`."""
    AttentionInterface.register(_IMPLEMENTATION, folded_attention)
    AttentionMaskInterface.register(_IMPLEMENTATION, sdpa_mask)
    model.model.language_model.config._attn_implementation = _IMPLEMENTATION


def folded_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    lengths: tuple[int, ...] | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Grouped-query attention; query is [B, heads, T, width], key and value are [B, key heads, L, width].

    Attention is causal without a mask. `lengths` are the lengths of the sequences packed into one row.
    """
    group_size, width = module.num_key_value_groups, query.shape[2]
    if attention_mask is None:
        # Fused kernels accept shared heads neither in float32 nor on a CPU; the fallback stores all scores.
        if group_size > 1 and (query.dtype == torch.float32 or query.device.type == "cpu"):
            key, value = key.repeat_interleave(group_size, 1), value.repeat_interleave(group_size, 1)
        shared = key.shape[1] != query.shape[1]
        parts = zip(*(x.split(lengths or x.shape[2], 2) for x in (query, key, value)), strict=True)
        outputs = [
            dot_product_attention(*part, is_causal=width > 1, scale=scaling, enable_gqa=shared)
            for part in parts
        ]
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 2)
    else:
        mask = attention_mask.repeat(1, 1, group_size, 1) if width > 1 and group_size > 1 else attention_mask
        folded = query.unflatten(1, (-1, group_size)).flatten(2, 3)
        output = dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
        output = output.unflatten(2, (group_size, width)).flatten(1, 2)
    return output.transpose(1, 2).contiguous(), None


def dot_product_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """torch's attention with the fastest kernel. Shapes: see `folded_attention`, without shared heads."""
    if query.is_cuda and key.shape[2] >= LONG_KEYS and query.shape[2] >= LONG_KEYS:
        with sdpa_kernel(_FASTEST_FIRST, set_priority=True):
            return scaled_dot_product_attention(query, key, value, **options)
    return scaled_dot_product_attention(query, key, value, **options)
