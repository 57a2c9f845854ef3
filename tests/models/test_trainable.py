"""Trained and frozen parameters, the base model, and the fingerprint."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from arpo.config import ModelConfig
from arpo.models.trainable import base_model_of, fingerprint, frozen_fingerprint, set_trainable
from tiny_vlm import QWEN2_5, tiny_model, tiny_of

ALL, LANGUAGE = ModelConfig(train="all"), ModelConfig(train="language")
LORA = ModelConfig(train="lora", lora_rank=4)


def chosen(settings: ModelConfig, seed: int = 0) -> Any:
    model = tiny_model(seed)
    set_trainable(model, settings, 0)
    return model


def test_all_changes_nothing() -> None:
    model = chosen(ALL)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not hasattr(model.model.visual, "feature_cache")


def test_language_freezes_the_tower_with_its_merger() -> None:
    model = chosen(LANGUAGE)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {name for name, _ in model.named_parameters() if name.startswith("model.visual.")}
    assert any("merger" in name for name in frozen)


def test_the_base_copy_shares_only_frozen_parameters() -> None:
    model = chosen(LANGUAGE)
    base: Any = base_model_of(model)
    for (name, ours), theirs in zip(model.named_parameters(), base.parameters(), strict=True):
        assert (ours is theirs) == name.startswith("model.visual."), name
        assert torch.equal(ours, theirs)
    assert base.model.visual.feature_cache is model.model.visual.feature_cache


def test_with_adapters_the_model_is_its_own_base() -> None:
    model = chosen(LORA)
    assert base_model_of(model) is model


def test_a_fingerprint_is_of_the_frozen_weights_in_any_precision() -> None:
    assert frozen_fingerprint(chosen(ALL)) == ""
    assert frozen_fingerprint(chosen(LANGUAGE)) == frozen_fingerprint(chosen(LANGUAGE).bfloat16()) != ""
    prints = {frozen_fingerprint(chosen(settings, seed)) for settings in (LANGUAGE, LORA) for seed in (0, 1)}
    assert len(prints) == 4
    trained = chosen(LORA)
    with torch.no_grad():
        for parameter in trained.parameters():
            if parameter.requires_grad:
                parameter.add_(1.0)
    assert frozen_fingerprint(trained) == frozen_fingerprint(chosen(LORA))


def test_one_changed_bias_changes_the_fingerprint() -> None:
    model = tiny_of(QWEN2_5)
    set_trainable(model, LORA, 0)
    before = frozen_fingerprint(model)
    with torch.no_grad():
        model.get_parameter("model.language_model.layers.1.self_attn.q_proj.bias")[3] += 1.0
    assert frozen_fingerprint(model) != before


def test_one_bit_changes_the_fingerprint() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model, same = nn.Linear(8, 4, dtype=dtype), nn.Linear(8, 4, dtype=dtype)
        same.load_state_dict(model.state_dict())
        assert fingerprint(same) == fingerprint(model)
        with torch.no_grad():
            bits = same.weight.view(torch.int32 if dtype == torch.float32 else torch.int16)
            bits[3, 5] ^= 1
        assert fingerprint(same) != fingerprint(model)
