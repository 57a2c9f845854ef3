"""What is made again in the backward pass gives the gradient that keeping it gives."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo.models import attention
from arpo.models.forward import sampled_logprobs
from arpo.models.recompute import recomputing
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


@pytest.mark.parametrize("whole_layers", [0, 1, 2])
@pytest.mark.parametrize("long", [1, 1024])  # attention kept, attention made again
def test_gradients_do_not_depend_on_what_is_kept(
    whole_layers: int, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LONG", long)
    model = tiny_model().double()
    wanted = gradients(model)
    with recomputing(model, whole_layers=whole_layers):
        found = gradients(model)
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-10, atol=1e-12) for name in wanted)


def test_less_is_kept_within_it_and_all_of_it_after() -> None:
    model = tiny_model()
    kept = [_kept_bytes(model)]
    with recomputing(model):
        kept.append(_kept_bytes(model))
    with recomputing(model, whole_layers=1):
        kept.append(_kept_bytes(model))
    kept.append(_kept_bytes(model))
    assert kept[1] < kept[2] < kept[0] == kept[3]


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
