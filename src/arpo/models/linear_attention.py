"""Gated linear attention of Qwen3.5 for sequences packed into one row.

A layer of transformers begins with an empty convolution window and a recurrent state of zero, and carries
both to the end of the row. Here each sequence gets a call of its own, so that neither crosses a boundary.
`install` changes one model instance; the classes of transformers, the weights and the results stay the same.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from arpo.models.families import VisionLanguageModel


def install(model: VisionLanguageModel) -> None:
    """Change the layers with linear attention of this instance; other models have none."""
    for layer in model.model.language_model.layers:
        if mixer := getattr(layer, "linear_attn", None):
            mixer.forward = partial(_forward, mixer)


def _forward(
    mixer: Any, hidden_states: Tensor, lengths: tuple[int, ...] | None = None, **options: Any
) -> Tensor:
    """`lengths` are the lengths of the sequences packed into one row."""
    forward = partial(type(mixer).forward, mixer, **options)
    if lengths is None:
        return forward(hidden_states)
    return torch.cat([forward(part_1TD) for part_1TD in hidden_states.split(lengths, 1)], 1)
