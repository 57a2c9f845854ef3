"""Log-probabilities of sampled tokens equal plain transformers', whatever shares the micro-batch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration as Model

from arpo.models import forward
from arpo.models.forward import encode_images, sampled_logprobs
from arpo.rendering import Renderer
from arpo.types import Sample, Screenshot
from tiny_vlm import first_prompt, screenshot, stock_inputs, tiny_model, tiny_renderer

RENDERER = tiny_renderer()


def sample_of(shots: list[Screenshot], answer_lengths: list[int], text: str = "open the file") -> Sample:
    """Looks and made-up answers in turn."""
    tokens: list[int] = []
    mask: list[bool] = []
    for index, (shot, length) in enumerate(zip(shots, answer_lengths, strict=True)):
        context = first_prompt(RENDERER, "e", shot, text).token_ids
        tokens += [*context, *range(30 + index, 30 + index + length)]
        mask += [False] * len(context) + [True] * length
    return Sample(
        token_ids=tuple(tokens), mask=tuple(mask), images=tuple(shots), behaviour_logprobs=(0.0,) * sum(mask),
        advantage=1.0, weight=1.0, replayed=False,
    )  # fmt: skip


SAMPLES = (
    sample_of([screenshot(1), screenshot(2, 140, 56), screenshot(1)], [3, 1, 4]),
    sample_of([screenshot(2, 140, 56)], [2], "save"),
    sample_of([screenshot(3), screenshot(4)], [5, 2]),
)


def stock_logprobs(model: Model, sample: Sample, temperature: float) -> torch.Tensor:
    logits = model(**stock_inputs(RENDERER, sample.token_ids, sample.images)).logits[0, :-1]
    logps = (logits / temperature).log_softmax(-1)
    tokens, mask = torch.tensor(sample.token_ids[1:]), torch.tensor(sample.mask[1:])
    return logps[mask, tokens[mask]]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_equal_plain_transformers(temperature: float) -> None:
    ours, stock = tiny_model(), tiny_model(stock=True)
    logp_N, entropy_N = sampled_logprobs(ours, SAMPLES, RENDERER, temperature)
    expected_N = torch.cat([stock_logprobs(stock, sample, temperature) for sample in SAMPLES])
    assert logp_N.shape == entropy_N.shape == (17,)
    torch.testing.assert_close(logp_N, expected_N, atol=1e-5, rtol=0)

    weights = torch.linspace(-1, 1, 17)
    (logp_N * weights).sum().backward()
    (expected_N * weights).sum().backward()
    for (name, mine), theirs in zip(ours.named_parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4, msg=name)


def test_entropy_is_that_of_the_distribution_and_carries_no_gradient() -> None:
    model = tiny_model()
    _, entropy_N = sampled_logprobs(model, SAMPLES[1:2], RENDERER, 1.0)
    logits = model(**stock_inputs(RENDERER, SAMPLES[1].token_ids, SAMPLES[1].images)).logits[0, :-1]
    expected = torch.distributions.Categorical(logits=logits[torch.tensor(SAMPLES[1].mask[1:])]).entropy()
    torch.testing.assert_close(entropy_N, expected, atol=1e-4, rtol=0)
    assert not entropy_N.requires_grad


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    model = tiny_model()
    together, _ = sampled_logprobs(model, SAMPLES, RENDERER, 1.0)
    alone = torch.cat([sampled_logprobs(model, [sample], RENDERER, 1.0)[0] for sample in SAMPLES])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


def test_each_distinct_screenshot_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Screenshot] = []

    def counting(model: Model, screenshots: Sequence[Screenshot], renderer: Renderer) -> torch.Tensor:
        encoded.extend(screenshots)
        return encode_images(model, screenshots, renderer)

    monkeypatch.setattr(forward, "encode_images", counting)
    sampled_logprobs(tiny_model(), SAMPLES, RENDERER, 1.0)
    assert [shot.sha256 for shot in encoded] == [
        shot.sha256 for shot in (screenshot(1), screenshot(2, 140, 56), screenshot(3), screenshot(4))
    ]


def test_logits_are_made_for_sampled_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
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
