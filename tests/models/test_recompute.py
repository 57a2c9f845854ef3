"""Recomputed activations give the same gradients as kept ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.models import attention
from arpo.models.forward import sampled_logprobs
from arpo.models.lora import attach
from arpo.models.recompute import KeptActivations, recomputing
from arpo.types import Message, Sample
from tiny_vlm import screenshot, tiny_model, tiny_renderer


def sample(seed: int) -> Sample:
    renderer = tiny_renderer()
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


def gradients(model: Qwen2_5_VLForConditionalGeneration) -> dict[str, torch.Tensor]:
    model.zero_grad()
    logps_T, _ = sampled_logprobs(model, [sample(0), sample(5)], tiny_renderer(), 1.0)
    logps_T.square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "kept",
    [
        KeptActivations(),
        KeptActivations(product_layers=1),
        KeptActivations(whole_layers=2),
        KeptActivations(whole_layers=2, vision_blocks=1),
        KeptActivations(whole_layers=2, vision_blocks=2),
    ],
)
@pytest.mark.parametrize("long", [1, 1024])  # attention kept, attention recomputed
def test_gradients_do_not_depend_on_what_is_kept(
    kept: KeptActivations, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LONG_KEYS", long)
    model = tiny_model().double()
    wanted = gradients(model)
    with recomputing(model, kept):
        found = gradients(model)
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-10, atol=1e-12) for name in wanted)


def test_less_is_kept_within_the_context_and_everything_after() -> None:
    model = tiny_model()
    sizes = [_kept_bytes(model)]
    for kept in (
        KeptActivations(),
        KeptActivations(whole_layers=2),
        KeptActivations(whole_layers=2, vision_blocks=1),
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
    model = tiny_model()
    if adapted:
        attach(model, rank=4, alpha=8.0, seed=0)
    everything = _multiplied(model, KeptActivations(whole_layers=2, vision_blocks=2))
    products = _multiplied(model, KeptActivations(product_layers=1, vision_blocks=2))
    little = _multiplied(model, KeptActivations(vision_blocks=2))
    tokens = 2 * len(sample(0).token_ids)
    wide, narrow = 4 * (64 + 32 + 32 + 64 + 192 + 192 + 64), 4 * 64
    assert products - everything == tokens * (wide + 4 * 192 if adapted else 0)
    in_layer = 64 * (64 + 32 + 32 + 64 + 192 + 192)
    assert little - products == tokens * (in_layer + 6 * narrow if adapted else in_layer)


def _multiplied(model: Qwen2_5_VLForConditionalGeneration, kept: KeptActivations) -> int:
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


def _kept_bytes(model: Qwen2_5_VLForConditionalGeneration) -> int:
    """Bytes of distinct tensors, other than parameters, that autograd holds after a forward pass."""
    held: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = sampled_logprobs(model, [sample(0)], tiny_renderer(), 1.0)
    del result
    return sum(held.values())
