"""Trained parameters (model.train), copies that share the frozen ones, fingerprints of weights."""

from __future__ import annotations

import copy
import hashlib
from typing import Any, TypeVar

import torch
from torch import nn

from arpo.config import ModelConfig
from arpo.models import linear_attention, lora
from arpo.models.checksums import bit_sum
from arpo.models.feature_cache import FeatureCache

FEATURES_MEGABYTES = 4096  # CPU memory for caching vision features when the vision tower is frozen
_FINGERPRINT_VALUES = 4096  # per frozen tensor
_M = TypeVar("_M", bound=nn.Module)


def set_trainable(
    model: Any, settings: ModelConfig, seed: int, features_megabytes: int = FEATURES_MEGABYTES
) -> None:
    """Freeze the parameters outside model.train; with model.train = lora, add adapters."""
    linear_attention.check_training(model)
    if settings.train == "all":
        return
    visual = model.model.visual
    if settings.train == "language":
        visual.requires_grad_(False)
    else:
        lora.attach(model, settings.lora_rank, seed)
    visual.feature_cache = FeatureCache(features_megabytes)


def base_model_of(model: nn.Module) -> nn.Module:
    """The base model for later comparison.

    This is the model itself if it has adapters, else a copy sharing the frozen parameters.
    """
    if lora.has_adapters(model):
        return model
    return copy_trained(model)


def copy_trained(model: _M) -> _M:
    """A copy of the model with trained parameters of its own. It shares the frozen ones."""
    shared = {id(parameter): parameter for parameter in model.parameters() if not parameter.requires_grad}
    return copy.deepcopy(model, shared)


@torch.no_grad()
def load_trained(model: nn.Module, source: nn.Module) -> None:
    """Copy the parameters of `source`, except those that both models share."""
    for own, new in zip(model.parameters(), source.parameters(), strict=True):
        if own is not new:
            own.copy_(new)


@torch.no_grad()
def frozen_fingerprint(model: nn.Module) -> str:
    """Hash of the frozen parameters: names, shapes and some values of each tensor; "" if there are none.

    Values are hashed as bfloat16, so a model has the same fingerprint in every precision.
    """
    frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    digest = hashlib.sha256()
    for name, parameter in frozen:
        stride = -(-parameter.numel() // _FINGERPRINT_VALUES)
        values = parameter.reshape(-1)[::stride].bfloat16().cpu().view(torch.int16)
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(values.numpy().tobytes())
    return digest.hexdigest() if frozen else ""


def fingerprint(model: nn.Module) -> str:
    """A hash of all weights. Weights that differ in one bit have another one.

    Each tensor contributes the sum of its bits as integers: this needs no copy to the CPU, and integer sums
    do not depend on the order of addition.
    """
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {bit_sum(tensor)}\n".encode())
    return digest.hexdigest()
