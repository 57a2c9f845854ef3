"""Which activations are kept for the backward pass, and which are made again: memory against time.

A block of either tower keeps its input and, of all that it computes, what full attention gave, which is
little to keep and slow to make. The rest is made again in the backward pass. Where memory is left over, some
of the language model's layers keep everything. No choice changes a gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
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


# Nothing in the model draws random numbers, so their state need not be put back.
again = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)


@contextmanager
def recomputing(model: Any, *, whole_layers: int = 0) -> Iterator[None]:
    """Forward passes within it keep little; the first `whole_layers` of the language model keep everything.

    The blocks are told so, and told the contrary at the end: the same model samples at other times.
    """
    blocks = [*model.model.visual.blocks, *model.model.language_model.layers[whole_layers:]]
    keep = partial(create_selective_checkpoint_contexts, _kept)
    for block in blocks:
        block._gradient_checkpointing_func = partial(again, context_fn=keep)
        block.gradient_checkpointing = block.training = True
    try:
        yield
    finally:
        for block in blocks:
            block.gradient_checkpointing = block.training = False


def _kept(_: object, op: object, *args: Any, **__: object) -> CheckpointPolicy:
    if op in _ATTENTION and args[1].shape[2] >= attention.LONG:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
