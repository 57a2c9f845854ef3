"""Fused norms and gated layers equal those of transformers, in values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from arpo.models import fused_ops
from arpo.models.fused_ops import install, rms_norm, swiglu
from tiny_vlm import tiny_model


class Gated(nn.Module):
    """A gated layer of 12 hidden values, four short of a multiple of eight."""

    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.intermediate_size = 12
        self.gate_proj, self.up_proj = (nn.Linear(6, 12, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(12, 6, bias=bias)
        self.act_fn = ACT2FN["silu"]

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden))


def gradients(model: nn.Module, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(hidden).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_a_norm_divides_by_the_root_mean_square() -> None:
    hidden = torch.tensor([[3.0, 4.0]])  # mean square 12.5
    expected = hidden / 12.5**0.5 * torch.tensor([1.0, 2.0])
    assert torch.allclose(rms_norm(hidden, torch.tensor([1.0, 2.0]), 0.0), expected)


def test_a_gate_of_zero_closes() -> None:
    assert swiglu(torch.tensor([0.0, 100.0]), torch.tensor([7.0, 2.0])).tolist() == [0.0, 200.0]


@pytest.mark.parametrize("bias", [True, False])
def test_zeros_that_fill_a_width_change_neither_value_nor_gradient(bias: bool) -> None:
    torch.manual_seed(0)
    model, hidden = Gated(bias=bias).double(), torch.randn(5, 6, dtype=torch.float64)
    value, wanted = model(hidden), gradients(model, hidden)
    install(model, compiled=False)
    assert torch.allclose(model(hidden), value, rtol=1e-14)
    found = gradients(model, hidden)
    assert found.keys() == wanted.keys()
    assert all(torch.allclose(found[name], wanted[name], rtol=1e-12) for name in wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_norms_of_a_real_model_are_bit_equal_to_stock(dtype: torch.dtype) -> None:
    stock = tiny_model(stock=True).to(dtype)
    fused = tiny_model(stock=True).to(dtype)
    install(fused, compiled=False)
    norm = "model.language_model.layers.0.input_layernorm"
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    wanted, found = stock.get_submodule(norm)(hidden), fused.get_submodule(norm)(hidden)
    assert found.dtype == dtype
    assert torch.equal(found, wanted) if dtype != torch.float64 else torch.allclose(found, wanted, rtol=1e-6)


def test_every_norm_and_gated_layer_is_fused() -> None:
    model = tiny_model()
    install(model, compiled=False)
    left = [
        name
        for name, module in model.named_modules()
        if ("norm" in name.rpartition(".")[2] or name.endswith("mlp")) and "forward" not in vars(module)
    ]
    assert left == ["model.visual.merger.mlp"]  # an ungated pair of layers


@pytest.mark.slow
def test_compiled_parts_agree_with_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_ops, "MIN_COMPILED_VALUES", 0)
    torch.manual_seed(0)
    model, hidden = Gated(bias=True), torch.randn(5, 6)
    wanted = gradients(model, hidden)
    install(model, compiled=True)
    found = gradients(model, hidden)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)
