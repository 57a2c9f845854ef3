"""Fused norms and gated layers equal those of transformers, in values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN
from transformers.models.qwen3_5.modeling_qwen3_5 import causal_conv1d_fn

from arpo.models import fused_ops
from arpo.models.fused_ops import causal_convolution, install, rms_norm, swiglu
from tiny_vlm import LINEAR, QWEN2_5, QWEN3_5, QWEN3_5_MOE, tiny_of


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


def gradients(
    model: nn.Module, hidden: torch.Tensor, call: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (call or model)(hidden).square().sum().backward()
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


LAYER = "model.language_model.layers.0"
NORMS = [
    (QWEN2_5, f"{LAYER}.input_layernorm", 1),
    *((family, f"{LAYER}.input_layernorm", 1) for family in LINEAR),
    *((family, f"{LAYER}.linear_attn.norm", 2) for family in LINEAR),  # hidden values and gate
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("family", "name", "inputs"), NORMS)
def test_norms_of_real_models_are_bit_equal_to_stock(
    family: str, name: str, inputs: int, dtype: torch.dtype
) -> None:
    norm = tiny_of(family, stock=True).get_submodule(name).to(dtype)
    generator = torch.Generator().manual_seed(1)
    torch.nn.init.normal_(norm.weight, generator=generator)
    given = [torch.randn(3, *norm.weight.shape, generator=generator).to(dtype) for _ in range(inputs)]
    wanted = norm(*given)
    install(norm, compiled=False)
    found = norm(*given)
    assert "forward" in vars(norm) and found.dtype == dtype
    assert torch.equal(found, wanted) if dtype != torch.float64 else torch.allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("family", [QWEN2_5, *LINEAR])
def test_every_norm_and_gated_layer_of_a_language_model_is_fused(family: str) -> None:
    model = tiny_of(family).model.language_model
    install(model, compiled=False)
    left = {
        name
        for name, module in model.named_modules()
        if ("norm" in name.rpartition(".")[2] or name.endswith("mlp")) and "forward" not in vars(module)
    }
    mixtures = {f"layers.{layer}.mlp" for layer in range(len(model.layers))}
    assert left == (mixtures if family == QWEN3_5_MOE else set())


def test_the_tower_keeps_one_pair_of_layers_without_a_gate() -> None:
    tower = tiny_of(QWEN2_5).model.visual
    install(tower, compiled=False)
    named = [
        (name, module) for name, module in tower.named_modules() if name.endswith(("norm1", "norm2", "mlp"))
    ]
    assert [name for name, module in named if "forward" not in vars(module)] == ["merger.mlp"]


def test_a_convolution_sums_the_last_tokens_of_its_channel() -> None:
    hidden_1CT = torch.tensor([[[1.0, 2.0, 3.0], [1.0, 0.0, 0.0]]])
    weight_CW = torch.tensor([[10.0, 1.0], [1.0, -100.0]])  # the last tap is that of the token itself
    found = causal_convolution(hidden_1CT, weight_CW, torch.tensor([0.0, 5.0]), "relu")
    assert found.tolist() == [[[1.0, 12.0, 23.0], [0.0, 6.0, 5.0]]]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("bias", [False, True])
def test_a_convolution_and_its_gradients_equal_those_of_transformers(
    dtype: torch.dtype, tolerance: float, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(2)
    shapes = ((2, 8, 9), (8, 4), (8,))
    inputs = [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]
    hidden, weight, added = inputs
    results = []
    for convolution in (causal_conv1d_fn, causal_convolution):
        value = convolution(hidden, weight, added if bias else None, activation="silu")
        results.append([value, *torch.autograd.grad(value.square().sum(), inputs[: 3 if bias else 2])])
    for wanted, found in zip(*results, strict=True):
        assert found.dtype == dtype and (found - wanted).norm() <= tolerance * wanted.norm()


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_convolution_keeps_the_channels_of_a_token_together(compiled: bool) -> None:
    """In the output, and in the gradient, which products of matrices read next. 33 tokens, 16 channels."""
    convolution = torch.compile(causal_convolution, dynamic=True) if compiled else causal_convolution
    projected_BTC = torch.randn(1, 33, 16, requires_grad=True)
    gradients: list[torch.Tensor] = []
    projected_BTC.register_hook(gradients.append)
    output_BTC = convolution(projected_BTC.transpose(1, 2), torch.randn(16, 4)).transpose(1, 2)
    output_BTC.square().sum().backward()
    assert output_BTC.is_contiguous()
    assert gradients[0].stride()[1:] == (16, 1)


def test_no_norm_is_left_uncompiled_after_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch compiles a function again for other ranks, strides and modes, and gives up without an error."""
    monkeypatch.setattr(fused_ops, "MIN_COMPILED_VALUES", 0)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    fused_ops._compiled_if_large.cache_clear()
    torch._dynamo.reset()
    linear, full, *_ = tiny_of(QWEN3_5).model.language_model.layers
    install(linear, compiled=True)
    install(full, compiled=True)

    def norms(batch: int, tokens: int) -> None:
        heads = torch.randn(batch, tokens, 4, 48)
        for norm in (full.self_attn.q_norm, full.self_attn.k_norm):
            norm(heads[..., :24])  # queries lie beside their gates
            norm(heads[..., :24].contiguous())
        full.input_layernorm(torch.randn(batch, tokens, 64))
        width = linear.linear_attn.norm.weight.shape[0]
        linear.linear_attn.norm(torch.randn(batch * tokens, width), torch.randn(batch * tokens, width))

    try:
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
                with mode():
                    for batch, tokens in ((1, 50), (1, 60), (7, 1), (1, 1), (3, 9)):
                        norms(batch, tokens)
    finally:
        fused_ops._compiled_if_large.cache_clear()
        torch._dynamo.reset()


@pytest.mark.slow
def test_compiled_parts_agree_with_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_ops, "MIN_COMPILED_VALUES", 0)
    torch.manual_seed(0)
    model, hidden = Gated(bias=True), torch.randn(5, 6)
    wanted = gradients(model, hidden)
    install(model, compiled=True)
    found = gradients(model, hidden)
    assert all(torch.allclose(found[name], wanted[name], atol=1e-6) for name in wanted)


@pytest.mark.slow
def test_compiled_layers_of_qwen3_5_agree_with_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer with linear and one with full attention: norms, gates, convolution and rotary positions."""
    monkeypatch.setattr(fused_ops, "MIN_COMPILED_VALUES", 0)
    language = tiny_of(QWEN3_5).model.language_model
    torch.manual_seed(0)
    positions = language.rotary_emb(torch.empty(0), torch.arange(70)[None, None].expand(3, 1, -1))
    hidden = torch.randn(1, 70, 64)
    for layer in language.layers[:2]:
        call = partial(layer, position_embeddings=positions)
        wanted = gradients(layer, hidden, call)
        install(layer, compiled=True)
        found = gradients(layer, hidden, call)
        assert len(wanted) > 10
        assert all(torch.allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5) for name in wanted)
