"""Logits in float32 for a bfloat16 model (model.float32_head).

In bfloat16, neighbouring logits near 20 are 0.125 apart, so a tiny difference between engine and learner may
become a large one. The head's weights stay bfloat16, also if they are tied to the embeddings; each call
converts them. So checkpoints and exports do not change. `install` changes one model instance, and thereby
engine and learner alike.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


def install(model: Any) -> None:
    """Compute the logits of this instance in float32. Does nothing for a float32 model."""
    model.lm_head.forward = partial(_forward, model.lm_head)


def _forward(head: nn.Linear, hidden: Tensor) -> Tensor:
    return linear(hidden.float(), head.weight.float(), None if head.bias is None else head.bias.float())


def converted_bytes(model: Any) -> int:
    """Memory of the head's weights in float32 while logits are computed; 0 if no conversion is needed."""
    weight: Tensor = model.lm_head.weight
    converts = "forward" in vars(model.lm_head) and weight.dtype != torch.float32
    return torch.float32.itemsize * weight.numel() if converts else 0
