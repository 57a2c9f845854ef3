"""Adapters start without effect, act like a change of the weights, and can be disabled and merged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from arpo.config import ModelConfig
from arpo.models.forward import sampled_logprobs
from arpo.models.lora import adapters_disabled, attach, has_adapters, merge
from arpo.models.trainable import set_trainable
from arpo.types import Sample
from engines import slot_engine
from tiny_vlm import (
    EACH_FAMILY,
    LINEAR,
    QWEN2_5,
    QWEN3,
    QWEN3_5,
    first_prompt,
    next_prompt,
    sampling,
    screenshot,
    tiny_of,
    tiny_renderer,
)


def sample(family: str) -> Sample:
    shot = screenshot(1)
    context = first_prompt(tiny_renderer(family), "e", shot).token_ids
    return Sample(
        token_ids=(*context, 30, 31, 32), mask=(*[False] * len(context), True, True, True), images=(shot,),
        behaviour_logprobs=(0.0,) * 3, advantage=1.0, weight=1.0, replayed=False,
    )  # fmt: skip


def logprobs(model: nn.Module, family: str) -> Tensor:
    return sampled_logprobs(model, [sample(family)], tiny_renderer(family), 1.0)[0]


def adapted(family: str, *, moved: bool, dtype: torch.dtype = torch.float32, keep: bool = False) -> Any:
    """A tiny model with adapters; `moved`: B is not zero; `keep`: as in training."""
    model = tiny_of(family).to(dtype)
    if keep:
        set_trainable(model, ModelConfig(train="lora", lora_rank=4), 0)
    else:
        attach(model, rank=4, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if moved and name.endswith("lora.b"):
                weight.copy_(0.0125 * torch.randn(weight.shape, generator=generator))
    return model


class Small(nn.Module):
    """One layer of a language model, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(2, 1, bias=True)
        self.language_model = nn.Module()
        self.language_model.layers = nn.ModuleList([layer])
        self.layer = layer


def test_worked_numbers() -> None:
    model = Small()
    attach(model, rank=1, seed=0)
    with torch.no_grad():
        model.layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        model.layer.bias.fill_(100.0)
        adapter: Any = model.layer.lora
        adapter.a.copy_(torch.tensor([[3.0, 4.0]]))
        adapter.b.fill_(0.25)
    inputs = torch.tensor([[1.0, -2.0]])
    assert model.layer(inputs).item() == 1 - 4 + 100 + 64 * 0.25 * (3 - 8)
    with adapters_disabled(model):
        assert model.layer(inputs).item() == 1 - 4 + 100
    merge(model, torch.float32)
    assert model.layer.weight.tolist() == [[49.0, 66.0]]
    assert model.layer(inputs).item() == 1 - 4 + 100 + 64 * 0.25 * (3 - 8)


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_the_first_forward_is_the_base_models_bit_for_bit(family: str) -> None:
    assert torch.equal(logprobs(adapted(family, moved=False), family), logprobs(tiny_of(family), family))


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_language_and_merger_layers_have_adapters_and_everything_else_is_frozen(family: str) -> None:
    base, model = tiny_of(family), adapted(family, moved=False)
    layers = {name for name, module in base.named_modules() if isinstance(module, nn.Linear)}
    linear = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
    projections = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", *linear)
    expected = {name for name in layers if name.endswith(projections) and ".language_model." in name} | {
        name for name in layers if ".visual." in name and "merger" in name
    }
    depth = model.config.text_config.num_hidden_layers
    of_attention = 5 + 4 + 5 if family in LINEAR else 4 * depth
    assert len(expected) == of_attention + 3 * depth + 2 * (4 if family == QWEN3 else 1)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {f"{name}.lora.{which}" for name in expected for which in "ab"}
    assert {name for name, _ in model.named_parameters()} - trained == dict(base.named_parameters()).keys()


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_adapters_act_as_the_merged_weights_do(family: str) -> None:
    model = adapted(family, moved=True)
    with_adapters, base = logprobs(model, family), logprobs(tiny_of(family), family)
    assert (with_adapters - base).abs().max() > 0.1
    merge(model, torch.float32)
    assert not has_adapters(model)
    assert model.state_dict().keys() == tiny_of(family).state_dict().keys()
    torch.testing.assert_close(logprobs(model, family), with_adapters, atol=1e-5, rtol=0)


def test_switched_off_it_is_the_base_model_and_afterwards_not() -> None:
    model = adapted(QWEN2_5, moved=True)
    with_adapters = logprobs(model, QWEN2_5)
    with pytest.raises(RuntimeError, match="halfway"), adapters_disabled(model):
        assert torch.equal(logprobs(model, QWEN2_5), logprobs(tiny_of(QWEN2_5), QWEN2_5))
        raise RuntimeError("halfway")
    assert torch.equal(logprobs(model, QWEN2_5), with_adapters)


@pytest.mark.parametrize("family", [QWEN2_5, QWEN3_5])
def test_every_adapter_gets_a_gradient_and_nothing_else_does(family: str) -> None:
    model = adapted(family, moved=True)
    logprobs(model, family).sum().backward()
    for name, weight in model.named_parameters():
        assert (weight.grad is not None and weight.grad.abs().max() > 0) == (".lora." in name), name


def test_first_values_come_from_the_seed_and_the_layers_name() -> None:
    drawn = []
    for seed in (0, 0, 1):
        model = tiny_of(QWEN2_5)
        attach(model, rank=4, seed=seed)
        drawn.append(dict(model.named_parameters()))
    name, other = (
        "model.language_model.layers.0.self_attn.q_proj.lora.a",
        "model.language_model.layers.1.self_attn.q_proj.lora.a",
    )
    first, again, seeded = (weights[name] for weights in drawn)
    assert torch.equal(first, again) and not torch.equal(first, seeded)
    assert not torch.equal(first, drawn[0][other])
    assert first.shape == (4, 64) and first.abs().max() <= 64**-0.5 and first.std() > 0.5 * 64**-0.5
    assert not any(weight.any() for name, weight in drawn[0].items() if name.endswith("lora.b"))


def test_beside_bfloat16_weights_adapters_are_float32() -> None:
    model = adapted(QWEN2_5, moved=True, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}
    assert model.dtype == torch.bfloat16
    near = logprobs(adapted(QWEN2_5, moved=True), QWEN2_5)
    torch.testing.assert_close(logprobs(model, QWEN2_5), near, atol=0.1, rtol=0)
    merge(model, torch.float32)  # from bfloat16, but rounded no further
    torch.testing.assert_close(logprobs(model, QWEN2_5), near, atol=0.05, rtol=0)


def test_a_second_pair_of_adapters_is_our_own_mistake() -> None:
    model = adapted(QWEN2_5, moved=False)
    with pytest.raises(AssertionError, match="already"):
        attach(model, rank=4, seed=0)


@pytest.mark.parametrize(("dtype", "gap"), [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_the_engine_with_its_cache_and_the_learner_agree(family: str, dtype: torch.dtype, gap: float) -> None:
    """Two turns through cached keys against one pass over the whole sequence."""
    model, renderer = adapted(family, moved=True, dtype=dtype, keep=True), tiny_renderer(family)

    async def play() -> Sample:
        engine = slot_engine(model, renderer, slots=2)
        first = first_prompt(renderer, "e", screenshot(1))
        answer = await engine.generate(first, sampling(1, 6))
        second = next_prompt(renderer, first, answer, screenshot(2, 140, 56))
        last = await engine.generate(second, sampling(2, 6))
        tokens = (*second.token_ids, *last.token_ids)
        mask = [False] * len(tokens)
        for prompt, given in ((first, answer), (second, last)):
            start = len(prompt.token_ids)
            mask[start : start + len(given.token_ids)] = [True] * len(given.token_ids)
        return Sample(
            token_ids=tokens, mask=tuple(mask), images=second.images,
            behaviour_logprobs=(*answer.logprobs, *last.logprobs),
            advantage=1.0, weight=1.0, replayed=False,
        )  # fmt: skip

    played = asyncio.run(play())
    engine_N = torch.tensor(played.behaviour_logprobs)
    with torch.no_grad():
        learner_N, _ = sampled_logprobs(model, [played], renderer, 1.0)
        with adapters_disabled(model):
            base_N, _ = sampled_logprobs(model, [played], renderer, 1.0)
    torch.testing.assert_close(engine_N, learner_N, atol=gap, rtol=0)
    assert (engine_N - base_N).abs().max() > 3 * gap
