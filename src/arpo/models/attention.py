"""Attention of the language model, and the choice of the attention kernel for both towers.

transformers copies keys and values for every query head whenever there is a mask. In decoding, that copy
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

LONG = 1024  # keys; from here on the kernel matters, and what it gave is worth keeping
_FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
NAME = "arpo_folded"


def install(model: VisionLanguageModel) -> None:
    AttentionInterface.register(NAME, folded_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.model.language_model.config._attn_implementation = NAME


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
    """Query [B, heads, T, width], key and value [B, key heads, L, width]; without a mask it is causal.

    `lengths` are those of the sequences that one row holds, one after the other.
    """
    groups, width = module.num_key_value_groups, query.shape[2]
    if attention_mask is None:
        # No fused kernel takes shared heads in float32, nor any of a CPU's; the fallback keeps all scores.
        if groups > 1 and (query.dtype == torch.float32 or query.device.type == "cpu"):
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        shared = key.shape[1] != query.shape[1]
        parts = zip(*(x.split(lengths or x.shape[2], 2) for x in (query, key, value)), strict=True)
        causal = [attention(*part, is_causal=width > 1, scale=scaling, enable_gqa=shared) for part in parts]
        mixed = causal[0] if len(causal) == 1 else torch.cat(causal, 2)
    else:
        mask = attention_mask.repeat(1, 1, groups, 1) if width > 1 and groups > 1 else attention_mask
        folded = query.unflatten(1, (-1, groups)).flatten(2, 3)
        mixed = attention(folded, key, value, attn_mask=mask, scale=scaling)
        mixed = mixed.unflatten(2, (groups, width)).flatten(1, 2)
    return mixed.transpose(1, 2).contiguous(), None


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """torch's own attention: query [B, heads, T, width], key and value [B, heads, L, width]."""
    if query.is_cuda and key.shape[2] >= LONG and query.shape[2] >= LONG:
        with sdpa_kernel(_FASTEST_FIRST, set_priority=True):
            return scaled_dot_product_attention(query, key, value, **options)
    return scaled_dot_product_attention(query, key, value, **options)
