"""Which activations are kept for the backward pass, and which are made again: memory against time.

A block of either tower keeps its input and, of all that it computes, what full attention gave, which is
little to keep and slow to make. The rest is made again in the backward pass. Where memory is left over, some
layers of the language model keep what their matrix products gave as well, or everything, and then blocks of
the vision tower: the last ones, since theirs is the first memory to be free again. No choice changes a
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
_PRODUCTS = {_aten.mm.default: 0, _aten.addmm.default: 1}  # and which argument is multiplied by the weights


# Nothing in the model draws random numbers, so their state need not be put back.
again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How many blocks keep more than little, counted from the end of their tower."""

    products: int = 0  # layers of the language model before the whole ones: what their matrix products gave
    whole: int = 0  # layers of the language model: everything
    blocks: int = 0  # of the vision tower: everything


@contextmanager
def recomputing(model: Any, keeping: Keeping) -> Iterator[None]:
    """Forward passes within it keep so much, and always the last layer, which `forward` makes small.

    The blocks are told so, and told the contrary at the end: the same model samples at other times.
    """
    blocks, layers = list(model.model.visual.blocks), list(model.model.language_model.layers)
    end = len(layers) - max(1, keeping.whole)
    first = max(0, end - keeping.products)
    policies: list[tuple[Any, Any]] = [
        *((block, _keep_little) for block in blocks[: len(blocks) - keeping.blocks]),
        *((layer, _keep_little) for layer in layers[:first]),
        *((layer, partial(_keep_products, _widths(layer))) for layer in layers[first:end]),
    ]
    for block, policy in policies:
        keep = partial(create_selective_checkpoint_contexts, policy)
        block._gradient_checkpointing_func = partial(again, context_fn=keep)
        block.gradient_checkpointing = block.training = True
    try:
        yield
    finally:
        for block, _ in policies:
            block.gradient_checkpointing = block.training = False


def _keep_little(_: object, op: object, *args: Any, **__: object) -> CheckpointPolicy:
    if op in _ATTENTION and args[1].shape[2] >= attention.LONG:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _keep_products(widths: set[int], context: object, op: Any, *args: Any, **named: Any) -> CheckpointPolicy:
    if op in _PRODUCTS and args[_PRODUCTS[op]].shape[1] in widths:
        return CheckpointPolicy.MUST_SAVE
    return _keep_little(context, op, *args, **named)


def _widths(layer: Any) -> set[int]:
    """Of what a layer multiplies by its weights, but for the last product: nothing in it looks at that."""
    return {layer.self_attn.q_proj.in_features, layer.self_attn.o_proj.in_features}
