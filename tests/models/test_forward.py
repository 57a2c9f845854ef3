"""Log-probabilities of sampled tokens equal those of plain transformers, in every family and any batch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from arpo.models import attention, forward, fused_ops, vision_attention
from arpo.models.families import VisionLanguageModel
from arpo.models.forward import TokenRow, embed_rows, encode_images, features_by_sha256, sampled_logprobs
from arpo.models.loading import prepare
from arpo.models.recompute import KeptActivations
from arpo.prompts.rendering import Renderer
from arpo.types import Sample, Screenshot
from devices import NEEDS_A_GPU
from tiny_vlm import (
    EACH_FAMILY,
    FAMILIES,
    LINEAR,
    QWEN2_5,
    QWEN3,
    QWEN3_5,
    TOKENIZER,
    first_prompt,
    in_precision,
    screenshot,
    stock_inputs,
    tiny_model,
    tiny_of,
    tiny_qwen3_5,
    tiny_renderer,
)
from tools.pretrain.tiny import new_tiny_model, tiny_config
from tools.pretrain.tokenizer import special_ids

RENDERERS = {family: tiny_renderer(family) for family in FAMILIES}
RENDERER = RENDERERS[QWEN2_5]


def sample_of(
    shots: list[Screenshot], answer_lengths: list[int], text: str = "open the file", family: str = QWEN2_5
) -> Sample:
    """Screenshots and made-up answers alternate."""
    tokens: list[int] = []
    mask: list[bool] = []
    for index, (shot, length) in enumerate(zip(shots, answer_lengths, strict=True)):
        context = first_prompt(RENDERERS[family], "e", shot, text).token_ids
        tokens += [*context, *range(30 + index, 30 + index + length)]
        mask += [False] * len(context) + [True] * length
    return Sample(
        token_ids=tuple(tokens), mask=tuple(mask), images=tuple(shots), behaviour_logprobs=(0.0,) * sum(mask),
        advantage=1.0, weight=1.0, replayed=False,
    )  # fmt: skip


def mixed_samples(family: str) -> tuple[Sample, ...]:
    """Images of three sizes, several in one sequence; in the first, the second answer follows two images."""
    return (
        sample_of([screenshot(1), screenshot(2, 140, 56), screenshot(1)], [3, 0, 5], family=family),
        sample_of([screenshot(2, 140, 56)], [2], "save", family),
        sample_of([screenshot(3), screenshot(4, 70, 130)], [5, 2], family=family),
    )


SAMPLES = mixed_samples(QWEN2_5)


def stock_logprobs(
    model: VisionLanguageModel, renderer: Renderer, sample: Sample, temperature: float
) -> torch.Tensor:
    made = stock_inputs(renderer, sample.token_ids, sample.images)
    inputs = {name: tensor.to(model.device) for name, tensor in made.items()}
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    logps = (model(**inputs).logits[0, :-1].float() / temperature).log_softmax(-1)
    tokens, mask = torch.tensor(sample.token_ids[1:]), torch.tensor(list(sample.mask[1:])).bool()
    return logps[mask, tokens[mask]]


@pytest.mark.parametrize("family", EACH_FAMILY)
@pytest.mark.parametrize(("dtype", "temperature"), [(torch.float32, 1.0), (torch.float64, 0.6)])
def test_values_and_gradients_equal_plain_transformers(
    family: str, dtype: torch.dtype, temperature: float
) -> None:
    ours, stock = (in_precision(tiny_of(family, stock=stock), dtype) for stock in (False, True))
    samples = mixed_samples(family)
    assert sum(sum(sample.mask) for sample in samples) == 17
    check_against_stock(ours, stock, samples, RENDERERS[family], temperature)


def check_against_stock(
    ours: VisionLanguageModel,
    stock: VisionLanguageModel,
    samples: Sequence[Sample],
    renderer: Renderer,
    temperature: float = 1.0,
) -> None:
    """Values, and the gradients of all parameters."""
    logp_N, entropy_N = sampled_logprobs(ours, samples, renderer, temperature)
    expected_N = torch.cat([stock_logprobs(stock, renderer, sample, temperature) for sample in samples])
    assert logp_N.shape == entropy_N.shape
    torch.testing.assert_close(logp_N, expected_N, atol=1e-5, rtol=0)
    weights = torch.linspace(-1, 1, len(logp_N))
    (logp_N * weights).sum().backward()
    (expected_N * weights).sum().backward()
    wide = 1e-5 if ours.config.model_type in LINEAR else 1e-6  # linear attention computes in float32
    close = 1e-4 if ours.dtype == torch.float32 else wide
    for (name, mine), theirs in zip(ours.named_parameters(), stock.parameters(), strict=True):
        assert theirs.grad.abs().max() > 0, name
        torch.testing.assert_close(mine.grad, theirs.grad, atol=close, rtol=close, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("family", EACH_FAMILY)
def test_compiled_parts_equal_plain_transformers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms, gates and rotary positions of both towers, as on a GPU."""
    ours, stock = tiny_of(family), tiny_of(family, stock=True)
    library = sys.modules[type(stock).__module__]
    monkeypatch.setattr(
        library, fused_ops.ROTARY_FUNCTION, getattr(library, fused_ops.ROTARY_FUNCTION)
    )  # put back afterwards
    monkeypatch.setattr(fused_ops, "MIN_COMPILED_VALUES", 0)
    plainly = fused_ops.apply_rotary_pos_emb_vision
    monkeypatch.setattr(vision_attention, "apply_vision_rotary", fused_ops._compiled_if_large(plainly))
    samples, renderer = mixed_samples(family), RENDERERS[family]
    fused_ops.install(ours, compiled=True)
    logp_N, _ = sampled_logprobs(ours, samples, renderer, 1.0)
    (logp_N * torch.linspace(-1, 1, len(logp_N))).sum().backward()
    monkeypatch.undo()
    expected_N = torch.cat([stock_logprobs(stock, renderer, sample, 1.0) for sample in samples])
    torch.testing.assert_close(logp_N, expected_N, atol=1e-5, rtol=0)
    (expected_N * torch.linspace(-1, 1, len(logp_N))).sum().backward()
    for (name, mine), theirs in zip(ours.named_parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "kept"),
    [
        ("cpu", None),
        pytest.param("cuda", None, marks=NEEDS_A_GPU),  # everything is kept: memory suffices
        pytest.param("cuda", KeptActivations(), marks=NEEDS_A_GPU),
        pytest.param("cuda", KeptActivations(product_layers=1, vision_blocks=1), marks=NEEDS_A_GPU),
    ],
)
@pytest.mark.parametrize("family", [QWEN2_5, QWEN3_5])
def test_long_sequences_equal_plain_transformers_in_float32(
    family: str, device: str, kept: KeptActivations | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wide and long enough for all GPU paths: compiled operations, fast attention, kept activations.

    bfloat16 on a GPU; float32 on a CPU, since many CPUs emulate bfloat16 very slowly.
    """
    dtype, atol, rtol, least_cosine = (
        (torch.bfloat16, 0.05, 0.02, 0.99) if device == "cuda" else (torch.float32, 1e-3, 1e-3, 0.9999)
    )
    monkeypatch.setattr(fused_ops, "MIN_COMPILED_VALUES", 2**16)
    if kept is not None:
        monkeypatch.setattr(forward, "activations_to_keep", lambda *_: kept)
    shape = tiny_config(
        TOKENIZER.get_vocab_size(), special_ids(TOKENIZER), hidden=512, layers=2, vision_layers=2
    )
    make: Any = partial(new_tiny_model, shape, seed=0)
    if family == QWEN3_5:
        make = partial(tiny_qwen3_5, stock=True, hidden=512)
    renderer = RENDERERS[family]
    stock = make().to(device, dtype).float().eval()
    side = 640 if family == QWEN3_5 else 560
    big = [screenshot(seed, side, side) for seed in (1, 2, 3)]
    samples = (
        sample_of(big, [40, 30, 50], family=family),
        sample_of([big[2], big[0], screenshot(4, side, side - 112)], [9, 8, 7], family=family),
    )
    assert all(
        len(sample.token_ids) > max(forward.MIN_PACKED_TOKENS, attention.LONG_KEYS) for sample in samples
    )
    weights = torch.linspace(-1, 1, sum(sum(sample.mask) for sample in samples), device=device)
    expected_N = torch.cat([stock_logprobs(stock, renderer, sample, 1.0) for sample in samples])
    (expected_N * weights).sum().backward()
    ours = prepare(make().to(device, dtype))  # compiles rotary for the process
    logp_N, _ = sampled_logprobs(ours, samples, renderer, 1.0, packed=True)
    torch.testing.assert_close(logp_N, expected_N, atol=atol, rtol=rtol)
    (logp_N * weights).sum().backward()
    for (name, mine), theirs in zip(ours.named_parameters(), stock.parameters(), strict=True):
        alike = torch.cosine_similarity(mine.grad.float().flatten(), theirs.grad.flatten(), dim=0)
        assert alike > least_cosine, (name, alike)


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_the_last_mlp_runs_on_sampled_tokens_only(family: str) -> None:
    """Seventeen tokens are sampled. The model is unchanged afterwards, also after an error."""
    model, samples = tiny_of(family), mixed_samples(family)
    layers, rows = model.model.language_model.layers, []
    for layer in (layers[0], layers[-1]):
        mlp = getattr(layer.mlp, "shared_expert", layer.mlp)
        mlp.gate_proj.register_forward_hook(lambda _, given, __: rows.append(given[0].numel() // 64))
    every = len(samples) * max(len(sample.token_ids) for sample in samples)
    sampled_logprobs(model, samples, RENDERERS[family], 1.0)
    assert rows == [every, 17]
    own = layers[-1].mlp.forward
    with pytest.raises(KeyError), forward._last_mlp_at(model, torch.arange(3)):
        assert layers[-1].mlp.forward != own
        raise KeyError
    assert layers[-1].mlp.forward == own


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_several_images_in_one_turn(family: str) -> None:
    renderer = RENDERERS[family]
    shots = (screenshot(5), screenshot(6, 56, 120), screenshot(7, 90, 60))
    looks = [first_prompt(renderer, "e", shot).token_ids for shot in shots]
    start, end = (renderer._ids[token] for token in ("<|vision_start|>", "<|vision_end|>"))
    images = [ids[ids.index(start) : ids.index(end) + 1] for ids in looks]
    tokens = (*looks[0][:3], *images[0], *images[1], *images[2], *looks[0][-5:], 30, 31)
    sample = Sample(
        token_ids=tokens, mask=(False,) * (len(tokens) - 2) + (True, True), images=shots,
        behaviour_logprobs=(0.0, 0.0), advantage=1.0, weight=1.0, replayed=False,
    )  # fmt: skip
    check_against_stock(tiny_of(family), tiny_of(family, stock=True), [sample], renderer)


def test_deep_features_reach_the_layers_of_one_family_only() -> None:
    for family, levels in ((QWEN2_5, 1), (QWEN3, 4)):
        model, renderer = tiny_of(family), RENDERERS[family]
        prompt = first_prompt(renderer, "e", screenshot(1))
        features = features_by_sha256(model, prompt.images, renderer)[screenshot(1).sha256]
        assert features.shape == (12, levels, 64)
        row = TokenRow.of(prompt.token_ids, prompt.images, renderer)
        embedded = embed_rows(model, [row], [features], renderer.pad_id)
        deepstack = embedded.deepstack
        assert (deepstack is None) == (family == QWEN2_5)
        if deepstack is not None:
            assert torch.equal(deepstack.features_NLD, features[:, 1:])
            assert torch.equal(embedded.embeds_BTD[deepstack.image_mask_BT], features[:, 0])


def test_entropy_is_that_of_the_distribution_and_carries_no_gradient() -> None:
    model = tiny_model()
    _, entropy_N = sampled_logprobs(model, SAMPLES[1:2], RENDERER, 1.0)
    logits = model(**stock_inputs(RENDERER, SAMPLES[1].token_ids, SAMPLES[1].images)).logits[0, :-1]
    expected = torch.distributions.Categorical(
        logits=logits[torch.tensor(list(SAMPLES[1].mask[1:])).bool()]
    ).entropy()
    torch.testing.assert_close(entropy_N, expected, atol=1e-4, rtol=0)
    assert not entropy_N.requires_grad


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_a_sample_does_not_depend_on_its_batch(family: str) -> None:
    model, samples, renderer = tiny_of(family), mixed_samples(family), RENDERERS[family]
    together, _ = sampled_logprobs(model, samples, renderer, 1.0)
    alone = torch.cat([sampled_logprobs(model, [sample], renderer, 1.0)[0] for sample in samples])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_each_distinct_screenshot_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Screenshot] = []

    def counting(
        model: VisionLanguageModel, screenshots: Sequence[Screenshot], renderer: Renderer, loader: None
    ) -> torch.Tensor:
        encoded.extend(screenshots)
        return encode_images(model, screenshots, renderer, loader)

    monkeypatch.setattr(forward, "encode_images", counting)
    sampled_logprobs(tiny_model(), SAMPLES, RENDERER, 1.0)
    assert [shot.sha256 for shot in encoded] == [
        shot.sha256 for shot in (screenshot(1), screenshot(2, 140, 56), screenshot(3), screenshot(4, 70, 130))
    ]


def test_logits_are_computed_for_sampled_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    shapes: list[tuple[int, ...]] = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: shapes.append(tuple(inputs[0].shape)))
    sampled_logprobs(model, SAMPLES, RENDERER, 1.0)
    assert shapes == [(17, 64)]


def test_a_sampled_placeholder_is_text() -> None:
    plain = SAMPLES[1]
    pad = RENDERER.image_token_id
    sampled = Sample(
        token_ids=(*plain.token_ids[:-1], pad), mask=plain.mask, images=plain.images,
        behaviour_logprobs=(0.0, 0.0), advantage=1.0, weight=1.0, replayed=False,
    )  # fmt: skip
    model = tiny_model()
    logp_N, _ = sampled_logprobs(model, [sampled], RENDERER, 1.0)
    same_N, _ = sampled_logprobs(model, [plain], RENDERER, 1.0)
    assert logp_N[0] == same_N[0]
    assert torch.isfinite(logp_N).all()


def values_and_gradients(
    model: VisionLanguageModel, family: str, packed: bool
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    logps_T, _ = sampled_logprobs(model, mixed_samples(family), RENDERERS[family], 0.7, packed=packed)
    (logps_T * torch.arange(1, len(logps_T) + 1)).sum().backward()
    return logps_T.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("family", EACH_FAMILY)
def test_sequences_packed_into_one_row_do_not_see_each_other(family: str) -> None:
    model = in_precision(tiny_of(family), torch.float64)
    padded, gradients = values_and_gradients(model, family, packed=False)
    packed, others = values_and_gradients(model, family, packed=True)
    torch.testing.assert_close(packed, padded, rtol=1e-6, atol=1e-6)  # the logits are float32
    assert others.keys() == gradients.keys()
    close = 1e-4 if family in LINEAR else 1e-6  # linear attention computes in float32
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-5, atol=close)


def test_logits_in_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_of(QWEN2_5)
    whole, gradients = values_and_gradients(model, QWEN2_5, packed=False)
    monkeypatch.setattr(forward, "MAX_LOGITS", 2 * model.lm_head.weight.shape[0])
    parts, others = values_and_gradients(model, QWEN2_5, packed=False)
    torch.testing.assert_close(parts, whole)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-4)
