"""Fused operations between the matrix products: norms, gated activations and rotary positions.

Stock norms and activations read and write every value several times, in float32. Compiled, each takes one
pass. A hidden width not divisible by eight (the vision tower's 3,420) makes matrix products on a GPU
three times slower; padding with zeros avoids this and changes no result. `install` changes one model instance
and keeps its weights. Only the language model's rotary function changes for the whole process, because
transformers looks it up by name.
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
from transformers.activations import SiLUActivation
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeRMSNormGated

ALIGNMENT = 8  # two-byte values: tensor cores read sixteen bytes at once

MIN_COMPILED_VALUES = 2**23  # one screenshot in a 7B model has more, hundreds in a tiny model have fewer
ROTARY_FUNCTION = "apply_rotary_pos_emb"

_compiling_small_inputs = ContextVar("compiling_small_inputs", default=False)


def install(model: nn.Module, *, compiled: bool) -> None:
    """Fuse norms and gated layers of this instance. Without `compiled`, the same steps run uncompiled."""
    norm, gated = (_compiled_if_large(f) if compiled else f for f in (rms_norm, swiglu))
    if compiled:
        _compile_rotary(model)
    for module in model.modules():
        if _is_norm(module):
            module.forward = partial(_norm_forward, module, norm)
        elif _is_gated(module):
            module.forward = partial(_gated_forward, module, gated)


def rms_norm(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divide by the root mean square of the last dimension, computed in float32 or wider."""
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(hidden.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def _compile_rotary(model: Any) -> None:
    """Replace the rotary function in every module of transformers with one."""
    for module in model.modules():
        library = sys.modules[type(module).__module__]
        rotate = getattr(library, ROTARY_FUNCTION, None)
        if rotate is not None and not hasattr(rotate, "uncompiled"):
            chosen = _compiled_if_large(rotate)
            chosen.uncompiled = rotate  # type: ignore[attr-defined]
            setattr(library, ROTARY_FUNCTION, chosen)


def apply_vision_rotary(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary positions of the vision tower; one pass on a GPU."""
    rotate: Callable[..., Any] = apply_rotary_pos_emb_vision
    return (_compiled_if_large(rotate) if query.is_cuda else rotate)(query, key, cosine, sine)


@cache
def _compiled_if_large(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile once for all lengths; small inputs run uncompiled, without overhead."""
    compiled = torch.compile(function, dynamic=True)

    def chosen(hidden: Tensor, *others: Any, **named: Any) -> Any:
        large = hidden.numel() >= MIN_COMPILED_VALUES or _compiling_small_inputs.get()
        return (compiled if large else function)(hidden, *others, **named)

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
    if isinstance(module, Qwen3_5RMSNormGated | Qwen3_5MoeRMSNormGated):  # it has a second input
        return False
    return hasattr(module, "variance_epsilon") and isinstance(getattr(module, "weight", None), nn.Parameter)


def _is_gated(module: nn.Module) -> bool:
    parts = ("gate_proj", "up_proj", "down_proj")
    return all(isinstance(getattr(module, layer, None), nn.Module) for layer in parts) and isinstance(
        module.act_fn, SiLUActivation | nn.SiLU
    )


def _norm_forward(module: Any, norm: Callable[..., Tensor], hidden: Tensor) -> Tensor:
    return norm(hidden, module.weight, module.variance_epsilon)


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
