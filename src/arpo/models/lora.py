"""LoRA: small adapters beside frozen layers of the language model and of the vision tower's mergers.

An adapted layer computes W x + alpha/rank · B A x. B starts at zero, so the model starts bit-identical to the
base model. A and B are always float32 and are cast to the type of the layer's input: they are one percent of
the weights, full precision costs nothing, no update is rounded away, and products run at the speed of the
base. `attach` changes one model instance and keeps the names of the base weights; adapters are named
NAME.lora.a and NAME.lora.b. There is no dropout and no bias.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

ADAPTED_LAYERS = re.compile(r"\.(language_model\.layers\.\d+|visual\.(merger|deepstack_merger_list))\.")


class Adapter(nn.Module):
    """The matrices A and B beside one linear layer."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        bound = layer.in_features**-0.5
        uniform = torch.rand((rank, layer.in_features), generator=generator, dtype=torch.float32)
        self.a = nn.Parameter(((2 * uniform - 1) * bound).to(layer.weight.device))
        self.b = nn.Parameter(torch.zeros((layer.out_features, rank), device=layer.weight.device))
        self.scale = alpha / rank
        self.enabled = True

    def forward(self, inputs: Tensor) -> Tensor:
        narrow = linear(inputs, self.a.to(inputs.dtype))
        return linear(narrow, (self.scale * self.b).to(inputs.dtype))

    def delta(self) -> Tensor:
        """The adapter's contribution to the weight of its layer: [out, in], float32."""
        return self.scale * self.b @ self.a


def attach(model: nn.Module, rank: int, alpha: float, seed: int) -> None:
    """Freeze the model and add adapters; seed and layer name decide their initial values."""
    assert not any(_adapted_layers(model)), "the model has adapters already"
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and ADAPTED_LAYERS.search(f".{name}."):
            generator = torch.Generator().manual_seed(Random(f"lora/{seed}/{name}").getrandbits(32))
            layer.lora = Adapter(layer, rank, alpha, generator)
            layer.forward = partial(_forward, layer)  # type: ignore[method-assign]


def _forward(layer: Any, inputs: Tensor) -> Tensor:
    """The adapter runs first: it saves its inputs, so a recomputed block can stop before the base product."""
    added = layer.lora(inputs) if layer.lora.enabled else None
    output = linear(inputs, layer.weight, layer.bias)
    return output if added is None else output + added


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(getattr(module, "lora", None), Adapter):
            yield name, module


def has_adapters(model: nn.Module) -> bool:
    return any(True for _ in _adapted_layers(model))


@contextmanager
def adapters_disabled(model: nn.Module) -> Iterator[None]:
    """Within this context the model is the base model. It does nothing without adapters."""
    adapters = [layer.lora for _, layer in _adapted_layers(model)]
    for adapter in adapters:
        adapter.enabled = False
    try:
        yield
    finally:
        for adapter in adapters:
            adapter.enabled = True


@torch.no_grad()
def merge(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert to a plain model of this dtype: add each adapter to the weight of its layer and round once.

    Rotary frequency tables keep their precision.
    """
    for _, layer in list(_adapted_layers(model)):
        merged = layer.weight.float() + layer.lora.delta()
        layer.weight = nn.Parameter(merged.to(dtype), requires_grad=False)
        del layer.lora, layer.forward
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def adapter_weights(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """A, [rank, in], and B, [out, rank], by layer name."""
    return {name: (layer.lora.a.detach(), layer.lora.b.detach()) for name, layer in _adapted_layers(model)}
