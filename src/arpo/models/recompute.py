"""Activation checkpointing: memory against time.

A block of either tower keeps its input and the output of full attention, which is small and slow to compute.
The backward pass recomputes the rest. If memory is left, some layers of the language model also keep the
outputs of their matrix products, or everything; then blocks of the vision tower keep everything. The last
blocks of each tower come first, because the backward pass frees their memory first. No choice changes a
gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from arpo.models import attention

_aten = torch.ops.aten
_ATTENTION = {
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
}
# The value is the index of the activations among the arguments; the other factor holds the weights.
_PRODUCTS = {_aten.mm.default: 0, _aten.addmm.default: 1}


# The model draws no random numbers, so their state need not be restored.
checkpointed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptActivations:
    """Number of blocks with more kept activations than the minimum, counted from the end of the tower."""

    product_layers: int = 0  # language layers before the whole ones: outputs of matrix products
    whole_layers: int = 0  # language layers: everything
    vision_blocks: int = 0  # blocks of the vision tower: everything


@contextmanager
def recomputing(model: Any, kept: KeptActivations) -> Iterator[None]:
    """Forward passes in this context keep these activations, and always those of the last layer.

    `forward` makes the last layer small. Exit resets the blocks, because the same model also samples.
    """
    blocks, layers = list(model.model.visual.blocks), list(model.model.language_model.layers)
    end = len(layers) - max(1, kept.whole_layers)
    first = max(0, end - kept.product_layers)
    policies: list[tuple[Any, Any]] = [
        *((block, _keep_little) for block in blocks[: len(blocks) - kept.vision_blocks]),
        *((layer, _keep_little) for layer in layers[:first]),
        *((layer, partial(_keep_products, _widths(layer))) for layer in layers[first:end]),
    ]
    for block, policy in policies:
        keep = partial(create_selective_checkpoint_contexts, policy)
        block._gradient_checkpointing_func = partial(checkpointed, context_fn=keep)
        block.gradient_checkpointing = block.training = True
    try:
        yield
    finally:
        for block, _ in policies:
            block.gradient_checkpointing = block.training = False


def _keep_little(_: object, op: object, *args: Any, **__: object) -> CheckpointPolicy:
    if op in _ATTENTION and args[1].shape[2] >= attention.LONG_KEYS:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _keep_products(widths: set[int], context: object, op: Any, *args: Any, **named: Any) -> CheckpointPolicy:
    if op in _PRODUCTS and args[_PRODUCTS[op]].shape[1] in widths:
        return CheckpointPolicy.MUST_SAVE
    return _keep_little(context, op, *args, **named)


def _widths(layer: Any) -> set[int]:
    """Input widths of the products to keep: all but the last product, which no later operation reads."""
    if hasattr(layer, "linear_attn"):
        return {layer.linear_attn.in_proj_qkv.in_features, layer.linear_attn.out_proj.in_features}
    return {layer.self_attn.q_proj.in_features, layer.self_attn.o_proj.in_features}
