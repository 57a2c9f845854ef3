"""Recomputed activations give the same gradients as kept ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from arpo.models import attention
from arpo.models.families import VisionLanguageModel
from arpo.models.forward import sampled_logprobs
from arpo.models.lora import attach
from arpo.models.recompute import KeptActivations, recomputing
from arpo.types import Message, Sample
from tiny_vlm import LINEAR, QWEN2_5, QWEN3_5, QWEN3_5_MOE, in_precision, screenshot, tiny_of, tiny_renderer

EACH_ATTENTION = pytest.mark.parametrize("family", [QWEN2_5, QWEN3_5, QWEN3_5_MOE])  # full; linear and full


def sample(seed: int, family: str = QWEN2_5) -> Sample:
    renderer = tiny_renderer(family)
    shots = [screenshot(seed), screenshot(seed + 1, 56, 84)]
    messages = [Message(role="user", text="open the file", screenshot=shot) for shot in shots]
    rendered = renderer.render(messages)
    answer = tuple(range(4, 9))
    return Sample(
        token_ids=rendered.token_ids + answer,
        mask=(False,) * len(rendered.token_ids) + (True,) * len(answer),
        images=rendered.images,
        behaviour_logprobs=(-1.0,) * len(answer),
        advantage=1.0,
        weight=1.0,
        replayed=False,
    )


def gradients(model: VisionLanguageModel) -> dict[str, torch.Tensor]:
    model.zero_grad()
    family = model.config.model_type
    samples = [sample(0, family), sample(5, family)]
    logps_T, _ = sampled_logprobs(model, samples, tiny_renderer(family), 1.0, packed=family in LINEAR)
    logps_T.square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "kept",
    [
        KeptActivations(),
        KeptActivations(product_layers=2),
        KeptActivations(whole_layers=2),
        KeptActivations(whole_layers=2, vision_blocks=1),
        KeptActivations(whole_layers=2, vision_blocks=2),
    ],
)
@pytest.mark.parametrize(  # attention kept, attention recomputed
    ("long", "family"), [(1, QWEN2_5), (1024, QWEN2_5), (1, QWEN3_5), (1, QWEN3_5_MOE)]
)
def test_gradients_do_not_depend_on_what_is_kept(
    kept: KeptActivations, long: int, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LONG_KEYS", long)
    model = in_precision(tiny_of(family), torch.float64)
    wanted = gradients(model)
    with recomputing(model, kept):
        found = gradients(model)
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-10, atol=1e-12) for name in wanted)


@EACH_ATTENTION
def test_less_is_kept_within_the_context_and_everything_after(family: str) -> None:
    model = tiny_of(family)
    layers = len(model.model.language_model.layers)
    sizes = [_kept_bytes(model)]
    for kept in (
        KeptActivations(),
        KeptActivations(whole_layers=layers),
        KeptActivations(whole_layers=layers, vision_blocks=1),
    ):
        with recomputing(model, kept):
            sizes.append(_kept_bytes(model))
    sizes.append(_kept_bytes(model))
    assert sizes[1] < sizes[2] < sizes[3] < sizes[0] == sizes[4]


@pytest.mark.parametrize("adapted", [False, True])
def test_kept_products_are_not_recomputed(adapted: bool) -> None:
    """Products of query, key, value, output, gate and up. No operation reads the output of down.

    An adapter of rank 4 has two more: the narrow one is kept except for down, the wide one is cheap.
    """
    model = tiny_of(QWEN2_5)
    if adapted:
        attach(model, rank=4, seed=0)
    everything = _multiplied(model, KeptActivations(whole_layers=2, vision_blocks=2))
    products = _multiplied(model, KeptActivations(product_layers=1, vision_blocks=2))
    little = _multiplied(model, KeptActivations(vision_blocks=2))
    tokens = 2 * len(sample(0).token_ids)
    wide, narrow = 4 * (64 + 32 + 32 + 64 + 192 + 192 + 64), 4 * 64
    assert products - everything == tokens * (wide + 4 * 192 if adapted else 0)
    in_layer = 64 * (64 + 32 + 32 + 64 + 192 + 192)
    assert little - products == tokens * (in_layer + 6 * narrow if adapted else in_layer)


def test_kept_products_of_linear_attention_are_not_recomputed() -> None:
    """Products of query, key and value together, gate, two scalars for each value head, output; then the MLP.

    The second layer has full attention, with a gate beside its queries.
    """
    model = tiny_of(QWEN3_5)
    products = _multiplied(model, KeptActivations(product_layers=2, vision_blocks=2))
    little = _multiplied(model, KeptActivations(vision_blocks=2))
    mlp = 64 * (96 + 96)
    linear = 64 * (2 * 64 + 80) + 64 * 80 + 2 * 64 * 4 + 80 * 64 + mlp
    full = 64 * 2 * 96 + 2 * 64 * 48 + 96 * 64 + mlp
    assert little - products == 2 * len(sample(0, QWEN3_5).token_ids) * (linear + full)


def _multiplied(model: VisionLanguageModel, kept: KeptActivations) -> int:
    """Multiplications of all matrix products of a forward and a backward pass."""
    with _Products() as made, recomputing(model, kept):
        gradients(model)
    return made.multiplied


class _Products(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.multiplied = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            left, right = args[-2:]
            self.multiplied += left.numel() * right.shape[1]
        return func(*args, **(kwargs or {}))


def _kept_bytes(model: VisionLanguageModel) -> int:
    """Bytes of distinct tensors, other than parameters, that autograd holds after a forward pass."""
    held: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # otherwise a later tensor may have the address of an earlier one
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        family = model.config.model_type
        result = sampled_logprobs(model, [sample(0, family)], tiny_renderer(family), 1.0)
    del result
    return sum(held.values())
