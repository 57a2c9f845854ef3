"""A fingerprint of a model's weights."""

from __future__ import annotations

import hashlib

import torch
from torch import nn

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


def fingerprint(model: nn.Module) -> str:
    """A hash of all weights. Weights that differ in one bit have another one.

    Each tensor contributes the sum of its bits as integers: this needs no copy to the CPU, and integer sums
    do not depend on the order of addition.
    """
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        bits = tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()])
        digest.update(f"{name} {tuple(tensor.shape)} {int(bits.sum(dtype=torch.int64))}\n".encode())
    return digest.hexdigest()
