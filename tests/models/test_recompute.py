"""What is made again in the backward pass gives the gradient that keeping it gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.models import attention
from arpo.models.forward import sampled_logprobs
from arpo.models.lora import attach
from arpo.models.recompute import Keeping, recomputing
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
    "keeping",
    [
        Keeping(),
        Keeping(products=1),
        Keeping(whole=2),
        Keeping(whole=2, blocks=1),
        Keeping(whole=2, blocks=2),
    ],
)
@pytest.mark.parametrize("long", [1, 1024])  # attention kept, attention made again
def test_gradients_do_not_depend_on_what_is_kept(
    keeping: Keeping, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LONG", long)
    model = tiny_model().double()
    wanted = gradients(model)
    with recomputing(model, keeping):
        found = gradients(model)
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-10, atol=1e-12) for name in wanted)


def test_less_is_kept_within_it_and_all_of_it_after() -> None:
    model = tiny_model()
    kept = [_kept_bytes(model)]
    for keeping in (Keeping(), Keeping(whole=2), Keeping(whole=2, blocks=1)):
        with recomputing(model, keeping):
            kept.append(_kept_bytes(model))
    kept.append(_kept_bytes(model))
    assert kept[1] < kept[2] < kept[3] < kept[0] == kept[4]


@pytest.mark.parametrize("adapted", [False, True])
def test_products_that_are_kept_are_not_made_again(adapted: bool) -> None:
    """Of query, key, value, output, gate and up. What comes of down nothing in the layer looks at.

    An adapter of rank 4 has two more: the narrow one is kept but for down's, the wide one is cheap.
    """
    model = tiny_model()
    if adapted:
        attach(model, rank=4, alpha=8.0, seed=0)
    everything = _multiplied(model, Keeping(whole=2, blocks=2))
    products = _multiplied(model, Keeping(products=1, blocks=2))
    little = _multiplied(model, Keeping(blocks=2))
    tokens = 2 * len(sample(0).token_ids)
    wide, narrow = 4 * (64 + 32 + 32 + 64 + 192 + 192 + 64), 4 * 64
    assert products - everything == tokens * (wide + 4 * 192 if adapted else 0)
    in_layer = 64 * (64 + 32 + 32 + 64 + 192 + 192)
    assert little - products == tokens * (in_layer + 6 * narrow if adapted else in_layer)


def _multiplied(model: Qwen2_5_VLForConditionalGeneration, keeping: Keeping) -> int:
    """Multiplications of all matrix products of a forward and a backward pass."""
    with _Products() as made, recomputing(model, keeping):
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
