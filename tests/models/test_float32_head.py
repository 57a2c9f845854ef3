"""Logits in float32 for a bfloat16 model: model.float32_head."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from arpo.config import Config, EnvConfig, ModelConfig
from arpo.engines.factory import open_engine
from arpo.models.forward import sampled_logprobs
from arpo.models.loading import load_model, meta_model
from arpo.models.memory_plan import measure_dimensions, plan_memory, read_model_info
from arpo.models.trainable import base_model_of
from arpo.types import Prompt, Sample, Sampling
from tiny_vlm import first_prompt, save_folder, screenshot, tiny_model, tiny_qwen3, tiny_renderer

RENDERER = tiny_renderer()


def settings(folder: Path, **changes: Any) -> ModelConfig:
    return ModelConfig(**{"path": str(folder), "dtype": "bfloat16", "device": "cpu", **changes})


def sample() -> Sample:
    prompt = first_prompt(RENDERER, "open the file", screenshot(3))
    tokens = tuple(range(10, 30))
    return sample_of(prompt, tokens, (-3.0,) * len(tokens))


def sample_of(prompt: Prompt, tokens: Sequence[int], logprobs: Sequence[float]) -> Sample:
    return Sample(
        token_ids=(*prompt.token_ids, *tokens),
        mask=(False,) * len(prompt.token_ids) + (True,) * len(tokens),
        images=prompt.images,
        behaviour_logprobs=tuple(logprobs),
        advantage=1.0,
        weight=0.1,
        replayed=False,
    )


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_a_float32_product_of_bfloat16_hidden_states(tmp_path: Path, tied: bool) -> None:
    save_folder(tiny_qwen3(tied=tied), tmp_path)
    plain, wide = (load_model(settings(tmp_path, float32_head=on), 0) for on in (False, True))
    hidden = torch.randn(5, plain.lm_head.in_features, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = hidden.float() @ wide.lm_head.weight.float().T
    assert wide.lm_head(hidden).dtype == torch.float32
    assert torch.equal(wide.lm_head(hidden), exact)
    assert plain.lm_head(hidden).dtype == torch.bfloat16
    assert not torch.equal(plain.lm_head(hidden).float(), exact)
    embedding = wide.get_input_embeddings().weight
    assert (wide.lm_head.weight is embedding) == tied
    assert wide.lm_head.weight.dtype == embedding.dtype == torch.bfloat16
    assert wide.state_dict().keys() == plain.state_dict().keys()


def test_the_learner_uses_the_float32_logits_and_trains_bfloat16_weights(tmp_path: Path) -> None:
    save_folder(tiny_model(), tmp_path)
    plain, wide = (load_model(settings(tmp_path, float32_head=on), 0) for on in (False, True))
    logps = [sampled_logprobs(model, [sample()], RENDERER, 1.0)[0] for model in (plain, wide)]
    head = plain.lm_head

    def float32_logits(hidden: torch.Tensor) -> torch.Tensor:
        return hidden.float() @ head.weight.float().T

    head.forward = float32_logits
    assert torch.equal(sampled_logprobs(plain, [sample()], RENDERER, 1.0)[0], logps[1])
    assert not torch.equal(logps[0], logps[1])
    logps[1].sum().backward()
    assert wide.lm_head.weight.grad is not None and wide.lm_head.weight.grad.dtype == torch.bfloat16


def test_a_base_model_keeps_the_head_of_its_own(tmp_path: Path) -> None:
    save_folder(tiny_model(), tmp_path)
    model = load_model(settings(tmp_path, float32_head=True), 0)
    base: Any = base_model_of(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    hidden = torch.ones(1, model.lm_head.in_features, dtype=torch.bfloat16)
    assert base.lm_head(hidden).dtype == torch.float32
    assert base.lm_head(hidden).abs().max() > 0 == model.lm_head(hidden).abs().max()


def test_ranks_have_the_same_head(tmp_path: Path) -> None:
    save_folder(tiny_model(), tmp_path)
    model = meta_model(settings(tmp_path, float32_head=True))
    hidden = torch.empty(1, model.lm_head.in_features, dtype=torch.bfloat16, device="meta")
    assert model.lm_head(hidden).dtype == torch.float32


def test_without_the_option_the_head_is_unchanged(tmp_path: Path) -> None:
    save_folder(tiny_model(), tmp_path)
    assert "forward" not in vars(load_model(settings(tmp_path), 0).lm_head)


@pytest.mark.parametrize("on", [False, True])
def test_the_engine_samples_from_float32_logits(tmp_path: Path, on: bool) -> None:
    save_folder(tiny_model(), tmp_path)
    opened = open_engine(Config(model=settings(tmp_path, float32_head=on), env=EnvConfig(parallel=1)))
    dtypes = []
    opened.model.lm_head.register_forward_hook(lambda head, inputs, logits: dtypes.append(logits.dtype))
    prompt = first_prompt(RENDERER, "e", screenshot(3))
    asyncio.run(opened.engine.generate(prompt, Sampling(temperature=1.0, max_tokens=4, seed=0)))
    assert set(dtypes) == {torch.float32 if on else torch.bfloat16}


def test_the_memory_plan_counts_the_converted_head(tmp_path: Path) -> None:
    save_folder(tiny_model(), tmp_path)
    plain, wide, exact = (
        Config(model=settings(tmp_path, float32_head=on, dtype=dtype))
        for on, dtype in ((False, "bfloat16"), (True, "bfloat16"), (True, "float32"))
    )
    head = 4 * load_model(plain.model, 0).lm_head.weight.numel()
    heads = [read_model_info(config.model).dims.converted_head for config in (plain, wide, exact)]
    assert heads == [0, head, 0]
    for config in (plain, wide, exact):
        measured = measure_dimensions(load_model(config.model, 0), config.model.lora_rank)
        assert measured == read_model_info(config.model).dims
    totals = [plan_memory(read_model_info(config.model), config).activations for config in (plain, wide)]
    assert totals[1] - totals[0] == 2 * head  # the weights and their gradient
