"""LoRA: small adapters beside frozen layers, on the language model and the vision tower's mergers.

An adapted layer gives W x + alpha/rank · B A x. B is zero at first, so that the model begins as the base
model, bit for bit. A and B are float32 whatever the base is, and take the type of the layer's input where
they are used: they are a hundredth of the weights, so full precision costs nothing and no update of theirs
is ever rounded away, while the products run as fast as the base's own. `attach` changes one model instance
and keeps every name of the base's weights; an adapter's are NAME.lora.a and NAME.lora.b. No dropout, no
biases.
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

ADAPTED = re.compile(r"\.(language_model\.layers\.\d+|visual\.(merger|deepstack_merger_list))\.")


class Adapter(nn.Module):
    """The pair of matrices beside one linear layer."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        bound = layer.in_features**-0.5
        drawn = torch.rand((rank, layer.in_features), generator=generator, dtype=torch.float32)
        self.a = nn.Parameter(((2 * drawn - 1) * bound).to(layer.weight.device))
        self.b = nn.Parameter(torch.zeros((layer.out_features, rank), device=layer.weight.device))
        self.scale = alpha / rank
        self.on = True

    def forward(self, inputs: Tensor) -> Tensor:
        narrow = linear(inputs, self.a.to(inputs.dtype))
        return linear(narrow, (self.scale * self.b).to(inputs.dtype))

    def delta(self) -> Tensor:
        """What the adapter adds to the layer's weight: [out, in], float32."""
        return self.scale * self.b @ self.a


def attach(model: nn.Module, rank: int, alpha: float, seed: int) -> None:
    """Freeze the model and put adapters beside its layers, their first values drawn by seed and name."""
    assert not any(_adapted(model)), "the model has adapters already"
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and ADAPTED.search(f".{name}."):
            generator = torch.Generator().manual_seed(Random(f"lora/{seed}/{name}").getrandbits(32))
            layer.lora = Adapter(layer, rank, alpha, generator)
            layer.forward = partial(_forward, layer)  # type: ignore[method-assign]


def _forward(layer: Any, inputs: Tensor) -> Tensor:
    """The adapter comes first: it keeps what it multiplies, so a block that is made again need not go on."""
    added = layer.lora(inputs) if layer.lora.on else None
    output = linear(inputs, layer.weight, layer.bias)
    return output if added is None else output + added


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, module in model.named_modules():
        if isinstance(getattr(module, "lora", None), Adapter):
            yield name, module


def has_adapters(model: nn.Module) -> bool:
    return any(True for _ in _adapted(model))


@contextmanager
def adapters_off(model: nn.Module) -> Iterator[None]:
    """Within it the model is the base model; one without adapters is as it always is."""
    adapters = [layer.lora for _, layer in _adapted(model)]
    for adapter in adapters:
        adapter.on = False
    try:
        yield
    finally:
        for adapter in adapters:
            adapter.on = True


@torch.no_grad()
def merge(model: nn.Module, dtype: torch.dtype) -> None:
    """A plain model with weights of this type: each adapter is added to its layer's, which is rounded once.

    Tables of rotary frequencies stay as precise as they are.
    """
    for _, layer in list(_adapted(model)):
        merged = layer.weight.float() + layer.lora.delta()
        layer.weight = nn.Parameter(merged.to(dtype), requires_grad=False)
        del layer.lora, layer.forward
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def adapter_weights(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """A, [rank, in], and B, [out, rank], by the name of the layer that they belong to."""
    return {name: (layer.lora.a.detach(), layer.lora.b.detach()) for name, layer in _adapted(model)}
