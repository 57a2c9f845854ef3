"""Checksums of tensors and of models."""

from __future__ import annotations

import copy

import pytest
import torch

from arpo.models.checksums import bit_sum, different_parameters
from tiny_vlm import tiny_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_add_up_in_any_layout(dtype: torch.dtype) -> None:
    tensor = torch.randn((6, 8), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert bit_sum(tensor) == bit_sum(tensor.t()) == bit_sum(tensor.flip(0))
    assert bit_sum(tensor) == sum(bit_sum(part) for part in tensor.split(3, dim=1))
    assert bit_sum(torch.nn.functional.pad(tensor, (0, 3))) == bit_sum(tensor)


def test_one_bit_of_one_parameter_is_found() -> None:
    model = tiny_model()
    other = copy.deepcopy(model)
    assert different_parameters(model, other) == []
    name = "model.language_model.layers.1.mlp.up_proj.weight"
    weight = other.get_parameter(name).data
    weight[3, 2] = torch.nextafter(weight[3, 2], torch.tensor(9.0))
    assert different_parameters(model, other) == [name]
