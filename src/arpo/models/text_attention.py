"""Attention of the language model, without copies of keys and values for query heads that share them.

transformers repeats keys and values for each query head whenever there is a mask, which in decoding moves
more memory than everything else. Here the query heads of one key head are folded into its queries instead.
Sequences packed into one row attend each to itself alone. `install` changes one model instance, through the
library's own registry of attention functions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from arpo.models.attention import attention
from arpo.models.families import VisionLanguageModel

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
