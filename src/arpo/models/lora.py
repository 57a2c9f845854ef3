"""LoRA: small adapters beside frozen layers of the language model and of the vision tower's mergers.

An adapted layer computes W x + ALPHA/rank · B A x. B starts at zero, so the model starts bit-identical to the
base model. A and B are always float32 and are cast to the type of the layer's input: they are one percent of
the weights, full precision costs nothing, no update is rounded away, and products run at the speed of the
base. `attach` changes one model instance and keeps the names of the base weights; adapters are named
NAME.lora.a and NAME.lora.b. There is no dropout and no bias.

Other tools and vLLM load the layout of PEFT: adapter_model.safetensors has
base_model.model.LAYER.lora_A.weight [r, in] and .lora_B.weight [out, r], adapter_config.json has r and
lora_alpha. PEFT itself computes in float32 and draws other initial values, so it does not train here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from arpo.config import ModelConfig
from arpo.models.hub import parse_hub_model
from arpo.models.loading import resolve_model
from arpo.storage.published_weights import ADAPTER_CONFIG_FILE

ALPHA = 64.0
_ADAPTER = re.compile(r"(.+)\.lora\.([ab])")
SCALED = ".lora_B.weight"  # end of the names in PEFT of the matrices that the scale multiplies
ADAPTED_LAYERS = re.compile(  # routers, experts and the gate of the shared expert have no adapters
    r"\.(language_model\.layers\.\d+(?!\.mlp\.shared_expert_gate)|visual\.(merger|deepstack_merger_list))\."
)


class Adapter(nn.Module):
    """The matrices A and B beside one linear layer."""

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = layer.in_features**-0.5
        uniform = torch.rand((rank, layer.in_features), generator=generator, dtype=torch.float32)
        self.a = nn.Parameter(((2 * uniform - 1) * bound).to(layer.weight.device))
        self.b = nn.Parameter(torch.zeros((layer.out_features, rank), device=layer.weight.device))
        self.scale = ALPHA / rank
        self.enabled = True

    def forward(self, inputs: Tensor) -> Tensor:
        narrow = linear(inputs, self.a.to(inputs.dtype))
        return linear(narrow, (self.scale * self.b).to(inputs.dtype))

    def delta(self) -> Tensor:
        """The adapter's contribution to the weight of its layer: [out, in], float32."""
        return self.scale * self.b @ self.a


def attach(model: nn.Module, rank: int, seed: int) -> None:
    """Freeze the model and add adapters; seed and layer name decide their initial values."""
    assert not any(_adapted_layers(model)), "the model has adapters already"
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and ADAPTED_LAYERS.search(f".{name}."):
            generator = torch.Generator().manual_seed(Random(f"lora/{seed}/{name}").getrandbits(32))
            layer.lora = Adapter(layer, rank, generator)
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


def peft_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The adapters by their names in PEFT; empty for a model without adapters."""
    matches = ((_ADAPTER.fullmatch(name), p.detach()) for name, p in model.named_parameters())
    return {_peft_name(match): tensor for match, tensor in matches if match}


def _peft_name(match: re.Match[str]) -> str:
    layer, matrix = match.groups()
    return f"base_model.model.{layer}.lora_{matrix.upper()}.weight"


def write_peft_config(folder: Path, settings: ModelConfig, names: Iterable[str]) -> None:
    """Write adapter_config.json for adapters of these names in PEFT."""
    base = parse_hub_model(settings.path)
    layers = (name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in names)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base.repo if base else str(resolve_model(settings.path)),
        "revision": (base and base.revision) or None,
        "r": settings.lora_rank,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(dict.fromkeys(layers)),
    }
    (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
