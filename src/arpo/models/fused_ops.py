"""Fused operations between the matrix products: norms, gates, rotary positions and short convolutions.

Stock norms and activations read and write every value several times, in float32. Compiled, each takes one
pass. A hidden width not divisible by eight (the vision tower's 3,420) makes matrix products on a GPU
three times slower; padding with zeros avoids this and changes no result. `install` changes one model instance
and keeps its weights. Only the language model's rotary function and convolution change for the whole process,
because transformers looks them up by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu
from transformers.activations import ACT2FN, SiLUActivation
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm, Qwen3_5RMSNormGated
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeRMSNorm, Qwen3_5MoeRMSNormGated

ALIGNMENT = 8  # two-byte values: tensor cores read sixteen bytes at once

MIN_COMPILED_VALUES = 2**23  # one screenshot in a 7B model has more, hundreds in a tiny model have fewer
MAX_VARIANTS = 64  # of a compiled function, by gradients, strides and sizes of 1; torch silently stops at 8
ROTARY_FUNCTION = "apply_rotary_pos_emb"
CONVOLUTION = "causal_conv1d_fn"

_compiling_small_inputs = ContextVar("compiling_small_inputs", default=False)


def install(model: nn.Module, *, compiled: bool) -> None:
    """Fuse norms and gated layers of this instance. Without `compiled`, the same steps run uncompiled."""

    def chosen(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return _compiled_if_large(function) if compiled else function

    if compiled:
        _compile_functions(model)
    modules: Iterator[Any] = model.modules()
    for module in modules:
        if isinstance(module, Qwen3_5RMSNorm | Qwen3_5MoeRMSNorm):
            module.forward = partial(_norm_forward, module, chosen(centred_norm), module.eps)
        elif isinstance(module, Qwen3_5RMSNormGated | Qwen3_5MoeRMSNormGated):
            module.forward = partial(_gated_norm_forward, module, chosen(gated_norm))
        elif _is_norm(module):
            module.forward = partial(_norm_forward, module, chosen(rms_norm), module.variance_epsilon)
        elif _is_gated(module):
            module.forward = partial(_gated_forward, module, chosen(swiglu))


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide by the root mean square of the last dimension, computed in float32 or wider."""
    return weight * _normalised(hidden, epsilon).to(hidden.dtype)


def centred_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The norm of Qwen3.5: weights are differences from 1, and rounding comes last."""
    return (_normalised(hidden, epsilon) * (1.0 + _widened(weight))).to(hidden.dtype)


def gated_norm(hidden: Tensor, gate: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The norm of linear attention in Qwen3.5, times its gate."""
    return (rms_norm(hidden, weight, epsilon) * silu(_widened(gate))).to(hidden.dtype)


def _normalised(hidden: Tensor, epsilon: float) -> Tensor:
    wide = _widened(hidden)
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)


def _widened(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def causal_convolution(
    hidden_BCT: Tensor, weight_CW: Tensor, bias_C: Tensor | None = None, activation: str = "silu", **_: Any
) -> Tensor:
    """The convolution of linear attention: a sum of the last tokens of each channel, then SiLU.

    It accumulates in float32 or wider, as torch's own one. The channels of a token stay together in memory,
    in the output and in gradients. Otherwise a row of an odd number of tokens is not aligned, and matrix
    products of such gradients need slower kernels.
    """
    width, count = weight_CW.shape[1], hidden_BCT.shape[2]
    padded_BTC = _widened(pad(hidden_BCT.transpose(1, 2), (0, 0, width - 1, 0)))
    taps_WC = _widened(weight_CW).T
    total_BTC = taps_WC.new_zeros(()) if bias_C is None else _widened(bias_C)
    for tap in range(width):
        total_BTC = total_BTC + padded_BTC[:, tap : tap + count] * taps_WC[tap]
    return ACT2FN[activation](total_BTC.to(hidden_BCT.dtype)).transpose(1, 2)


def _compile_functions(model: Any) -> None:
    """Replace rotary function and convolution in every module of transformers that has one."""
    for module in model.modules():
        library = sys.modules[type(module).__module__]
        for name, function in ((ROTARY_FUNCTION, None), (CONVOLUTION, causal_convolution)):
            stock = getattr(library, name, None)
            if stock is not None and not hasattr(stock, "uncompiled"):
                chosen = _compiled_if_large(function or stock, stock)
                chosen.uncompiled = stock  # type: ignore[attr-defined]
                setattr(library, name, chosen)


def apply_vision_rotary(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary positions of the vision tower; one pass on a GPU."""
    rotate: Callable[..., Any] = apply_rotary_pos_emb_vision
    return (_compiled_if_large(rotate) if query.is_cuda else rotate)(query, key, cosine, sine)


@cache
def _compiled_if_large(
    function: Callable[..., Any], small: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Compile once for all lengths. Small inputs run `small`, or `function` uncompiled: without overhead."""
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, MAX_VARIANTS)
    compiled = torch.compile(function, dynamic=True)

    def chosen(hidden: Tensor, *others: Any, **named: Any) -> Any:
        large = hidden.numel() >= MIN_COMPILED_VALUES or _compiling_small_inputs.get()
        return (compiled if large else small or function)(hidden, *others, **named)

    return chosen


@contextmanager
def compiled_small_inputs() -> Iterator[None]:
    """Run small inputs compiled too. A captured graph has no overhead, so it gains from fewer kernels."""
    token = _compiling_small_inputs.set(True)
    try:
        yield
    finally:
        _compiling_small_inputs.reset(token)


def _is_norm(module: nn.Module) -> bool:
    return hasattr(module, "variance_epsilon") and isinstance(getattr(module, "weight", None), nn.Parameter)


def _is_gated(module: nn.Module) -> bool:
    parts = ("gate_proj", "up_proj", "down_proj")
    return all(isinstance(getattr(module, layer, None), nn.Module) for layer in parts) and isinstance(
        module.act_fn, SiLUActivation | nn.SiLU
    )


def _norm_forward(module: Any, norm: Callable[..., Tensor], epsilon: float, hidden: Tensor) -> Tensor:
    """As rows: hidden values and the heads of queries and keys then share compiled code."""
    return norm(hidden.flatten(0, -2), module.weight, epsilon).view(hidden.shape)


def _gated_norm_forward(module: Any, norm: Callable[..., Tensor], hidden: Tensor, gate: Tensor) -> Tensor:
    return norm(hidden, gate, module.weight, module.variance_epsilon)


def _gated_forward(module: Any, gated: Callable[..., Tensor], hidden: Tensor) -> Tensor:
    adapted = any(hasattr(layer, "lora") for layer in (module.gate_proj, module.up_proj, module.down_proj))
    if module.intermediate_size % ALIGNMENT == 0 or adapted:
        return module.down_proj(gated(module.gate_proj(hidden), module.up_proj(hidden)))
    padding = -module.intermediate_size % ALIGNMENT
    gate, up = (_padded_linear(layer, hidden, padding) for layer in (module.gate_proj, module.up_proj))
    return linear(gated(gate, up), pad(module.down_proj.weight, (0, padding)), module.down_proj.bias)


def _padded_linear(layer: nn.Linear, hidden: Tensor, padding: int) -> Tensor:
    """The output of the layer, with `padding` zeros at the end of each row."""
    bias = None if layer.bias is None else pad(layer.bias, (0, padding))
    return linear(hidden, pad(layer.weight, (0, 0, 0, padding)), bias)
