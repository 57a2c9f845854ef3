"""LoRA adapters in the layout of PEFT, which other tools and vLLM load.

adapter_model.safetensors has base_model.model.LAYER.lora_A.weight [r, in] and .lora_B.weight [out, r];
adapter_config.json has r and lora_alpha. The weight of the layer becomes W + lora_alpha / r · B A.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor, nn

from arpo.config import ModelConfig
from arpo.models.hub import parse_hub_model
from arpo.models.loading import resolve_model
from arpo.storage.published_weights import ADAPTER_CONFIG_FILE

_ADAPTER = re.compile(r"(.+)\.lora\.([ab])")


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
        "lora_alpha": settings.lora_alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(dict.fromkeys(layers)),
    }
    (folder / ADAPTER_CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
