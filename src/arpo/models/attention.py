"""Attention of the language model, and the choice of the attention kernel for both towers.

transformers copies keys and values for every query head whenever there is a mask. In decoding, the copy
moves more memory than everything else. `folded_attention` folds the query heads of one key head into its
queries instead. Sequences packed into one row attend only to themselves. `install` changes one model
instance, through the registry of attention functions in transformers.

`attention` chooses the kernel. For long sequences cuDNN's kernel is nearly twice as fast as torch's default.
Its setup cost per sequence length makes it too slow for decoding, where the length grows by one each step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from arpo.models.families import VisionLanguageModel

LONG_KEYS = 1024  # keys from which the choice of kernel matters and attention outputs are kept
_PLANNED_KEYS = 256
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
    pool: Any = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Grouped-query attention; query is [B, heads, T, width], key and value are [B, key heads, L, width].

    Attention is causal without a mask. `lengths` are the lengths of the sequences packed into one row. A
    `pool` (a `PoolStep`) has the keys of earlier tokens.
    """
    if pool is not None:
        return pool.attend(query, module.layer_idx, scaling), None
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


@dataclass(frozen=True, slots=True)
class Span:
    """New tokens of one sequence: rows `first` to `end` of the queries, the last of `length` keys."""

    first: int
    end: int
    start: int  # of the keys in the pool
    length: int

    @property
    def seen(self) -> int:
        """Keys before the new tokens."""
        return self.length - (self.end - self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """New tokens of several sequences in one row, and their keys in a pool; tensors on the device.

    `spans` has the same numbers on the host. A captured graph has none: its numbers change.
    """

    bounds_B: Tensor  # one more than sequences: first row of each, and the end
    starts_B: Tensor
    lengths_B: Tensor
    max_width: int
    max_length: int
    spans: tuple[Span, ...] = ()


def pool_attention(
    query_NHD: Tensor, key_PHD: Tensor, value_PHD: Tensor, sequences: PackedSequences, scale: float
) -> Tensor:
    """Causal attention of packed new tokens to keys anywhere in a pool of P tokens: [N, heads, width]."""
    if query_NHD.is_cuda and query_NHD.dtype != torch.float32:
        if sequences.max_width < LONG_KEYS:
            return _flash_pool_attention(query_NHD, key_PHD, value_PHD, sequences, scale)
        one = _cudnn_span_attention
    else:
        one = _masked_span_attention
    return torch.cat([one(query_NHD, key_PHD, value_PHD, span, scale) for span in sequences.spans])


def _flash_pool_attention(
    query_NHD: Tensor, key_PHD: Tensor, value_PHD: Tensor, sequences: PackedSequences, scale: float
) -> Tensor:
    """One call of torch's flash kernel for all sequences, without a mask and without padding.

    The public function of this kernel takes no separate starts and lengths, so the operator is called.
    """
    output: Tensor = torch.ops.aten._flash_attention_forward(
        query_NHD,
        key_PHD,
        value_PHD,
        sequences.bounds_B.int(),
        torch.nn.functional.pad(sequences.starts_B, (0, 1)).int(),
        sequences.max_width,
        sequences.max_length,
        0.0,  # dropout
        sequences.max_width > 1,  # causal
        False,  # debug mask
        scale=scale,
        seqused_k=sequences.lengths_B.int(),
    )[0]
    return output


def _cudnn_span_attention(
    query_NHD: Tensor, key_PHD: Tensor, value_PHD: Tensor, span: Span, scale: float
) -> Tensor:
    """cuDNN's kernel, 1.7 times as fast as the flash kernel for a screenshot after a long history.

    It has no causal mask for fewer queries than keys. So there are two calls: all keys before an edge, and
    the square after it; their outputs are weighted by their sums of exponentials. The edge and the sizes are
    multiples of `_PLANNED_KEYS`, because cuDNN needs 65 ms to plan for a new size. Rows beyond the new tokens
    are padding: the keys there come after every new token.
    """
    edge = span.seen // _PLANNED_KEYS * _PLANNED_KEYS
    end = -(-span.length // _PLANNED_KEYS) * _PLANNED_KEYS
    rows = slice(span.seen - edge, span.length - edge)
    query = query_NHD.new_zeros((end - edge, *query_NHD.shape[1:]))
    query[rows] = query_NHD[span.first : span.end]

    def part(first: int, last: int, causal: bool) -> tuple[Tensor, Tensor]:
        keys = slice(span.start + first, span.start + last)
        tensors = (tensor.transpose(0, 1)[None] for tensor in (query, key_PHD[keys], value_PHD[keys]))
        output, sums, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(
            *tensors, None, True, 0.0, causal, False, scale=scale
        )
        return output[0].transpose(0, 1), sums.flatten(1).view(-1, len(query), 1).transpose(0, 1)

    output_SHD, sums_SH1 = part(edge, end, causal=True)
    if edge:
        earlier_SHD, earlier_sums_SH1 = part(0, edge, causal=False)
        share_SH1 = torch.sigmoid(earlier_sums_SH1 - sums_SH1).to(output_SHD.dtype)
        output_SHD = torch.lerp(output_SHD, earlier_SHD, share_SH1)
    return output_SHD[rows]


def _masked_span_attention(
    query_NHD: Tensor, key_PHD: Tensor, value_PHD: Tensor, span: Span, scale: float
) -> Tensor:
    """torch's attention with a mask, for a CPU and for float32."""
    group_size = query_NHD.shape[1] // key_PHD.shape[1]
    keys = slice(span.start, span.start + span.length)
    query, key, value = (
        tensor.transpose(0, 1)
        for tensor in (
            query_NHD[span.first : span.end],
            key_PHD[keys].repeat_interleave(group_size, 1),
            value_PHD[keys].repeat_interleave(group_size, 1),
        )
    )
    seen_TL = torch.ones(query.shape[1], span.length, dtype=torch.bool, device=query.device).tril(span.seen)
    output = scaled_dot_product_attention(query, key, value, attn_mask=seen_TL, scale=scale)
    return output.transpose(0, 1)


def dot_product_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """torch's attention with the fastest kernel. Shapes: see `folded_attention`, without shared heads.

    cuDNN plans each new shape, which takes about 0.2 s. Without cuDNN (`enable_cudnn_sdp`), torch chooses.
    """
    is_long = key.shape[2] >= LONG_KEYS and query.shape[2] >= LONG_KEYS
    if query.is_cuda and is_long and torch.backends.cuda.cudnn_sdp_enabled():
        with sdpa_kernel(_FASTEST_FIRST, set_priority=True):
            return scaled_dot_product_attention(query, key, value, **options)
    return scaled_dot_product_attention(query, key, value, **options)
