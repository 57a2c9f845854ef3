"""What of a model is trained (model.train), what that leaves frozen, and how that is known again."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import torch
from torch import nn

from arpo.config import ModelConfig
from arpo.models import lora
from arpo.models.feature_cache import FeatureCache

_SAMPLED = 4096  # values of each frozen tensor that its fingerprint is made of


def choose_trained(model: Any, settings: ModelConfig, seed: int) -> None:
    """Freeze what the recipe does not train, and give the model adapters where it trains those."""
    if settings.train == "all":
        return
    visual = model.model.visual
    if settings.train == "language":
        visual.requires_grad_(False)
    else:
        lora.attach(model, settings.lora_rank, settings.lora_alpha, seed)
    visual.feature_cache = FeatureCache(settings.features_megabytes)


def base_of(model: nn.Module) -> nn.Module:
    """The model to compare with later: itself where it has adapters, else a copy sharing what is frozen."""
    if lora.has_adapters(model):
        return model
    shared = {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}
    return copy.deepcopy(model, shared)


@torch.no_grad()
def frozen_fingerprint(model: nn.Module) -> str:
    """A hash of what is not trained, "" where all is: names, shapes, and values spread over each tensor.

    Values are taken as bfloat16, so that a model has one fingerprint in whatever precision it was loaded.
    """
    frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    digest = hashlib.sha256()
    for name, parameter in frozen:
        stride = -(-parameter.numel() // _SAMPLED)
        values = parameter.reshape(-1)[::stride].bfloat16().cpu().view(torch.int16)
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest() if frozen else ""
