"""Checksums of tensors: the sum of their bits as integers.

A sum of integers is exact and has no order, so the sums of the parts of a tensor add up to that of the whole,
on any device and in any layout. This module runs inside vLLM too: it imports nothing but torch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes


def bit_sum(tensor: Tensor) -> int:
    """The sum of the bit patterns. Zeros add nothing."""
    return int(tensor.detach().view(_INTEGERS[tensor.element_size()]).sum(dtype=torch.int64))


def different_parameters(model: nn.Module, source: nn.Module) -> list[str]:
    """Names of the parameters that differ, except those that both models share."""
    pairs = zip(model.named_parameters(), source.parameters(), strict=True)
    return [name for (name, own), new in pairs if own is not new and bit_sum(own) != bit_sum(new)]
