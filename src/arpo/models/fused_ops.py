"""The parts between the matrix products, fused: norms and gated activations, at widths that suit the GPU.

Stock norms and activations read and write every value several times, in float32; compiled, each is one pass.
A hidden width that is no multiple of eight (the vision tower's 3,420) makes a GPU's products three times
slower: zeros make it one, and change no result. `install` changes one model instance, whose weights stay;
only the language model's rotary function, which transformers finds by name, is changed for the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu
from transformers.activations import SiLUActivation
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import apply_rotary_pos_emb_vision

ALIGNED = 8  # values of two bytes that make up the sixteen that a GPU's tensor cores read at once

LARGE = 2**23  # values: one screenshot of a 7B model has more, some hundreds of a tiny model's less
ROTARY = "apply_rotary_pos_emb"


def install(model: nn.Module, *, compiled: bool) -> None:
    """Fuse the norms and gated layers of this instance. Without `compiled` the same steps run one by one."""
    norm, gated = (_compiled_where_large(f) if compiled else f for f in (normalised, gated_product))
    if compiled:
        _compile_rotary(model)
    for module in model.modules():
        if _is_norm(module):
            module.forward = partial(_norm_forward, module, norm)
        elif _is_gated(module):
            module.forward = partial(_gated_forward, module, gated)


def normalised(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Divided by the root mean square of the last dimension, computed in float32 at least."""
    wide = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(hidden.dtype)


def gated_product(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def _compile_rotary(model: Any) -> None:
    """Of the language model's attention, whose module finds it by name. A library without it is left be."""
    for module in model.modules():
        library = sys.modules[type(module).__module__]
        rotate = getattr(library, ROTARY, None)
        if rotate is not None and not hasattr(rotate, "plain"):
            chosen = _compiled_where_large(rotate)
            chosen.plain = rotate  # type: ignore[attr-defined]
            setattr(library, ROTARY, chosen)


def rotated(query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor]:
    """The vision tower's rotary positions; on a GPU in one pass."""
    rotate: Callable[..., Any] = apply_rotary_pos_emb_vision
    return (_compiled_where_large(rotate) if query.is_cuda else rotate)(query, key, cosine, sine)


@cache
def _compiled_where_large(function: Callable[..., Any]) -> Callable[..., Any]:
    """One compilation for all lengths; the few tokens of a decoding step are not worth its overhead."""
    compiled = torch.compile(function, dynamic=True)

    def chosen(hidden: Tensor, *others: Any, **named: Any) -> Any:
        return (compiled if hidden.numel() >= LARGE else function)(hidden, *others, **named)

    return chosen


def _is_norm(module: nn.Module) -> bool:
    return hasattr(module, "variance_epsilon") and isinstance(getattr(module, "weight", None), nn.Parameter)


def _is_gated(module: nn.Module) -> bool:
    parts = ("gate_proj", "up_proj", "down_proj")
    return all(isinstance(getattr(module, part, None), nn.Module) for part in parts) and isinstance(
        module.act_fn, SiLUActivation | nn.SiLU
    )


def _norm_forward(module: Any, norm: Callable[..., Tensor], hidden: Tensor) -> Tensor:
    return norm(hidden, module.weight, module.variance_epsilon)


def _gated_forward(module: Any, gated: Callable[..., Tensor], hidden: Tensor) -> Tensor:
    adapted = any(hasattr(part, "lora") for part in (module.gate_proj, module.up_proj, module.down_proj))
    if module.intermediate_size % ALIGNED == 0 or adapted:
        return module.down_proj(gated(module.gate_proj(hidden), module.up_proj(hidden)))
    short = -module.intermediate_size % ALIGNED
    gate, up = (_widened(part, hidden, short) for part in (module.gate_proj, module.up_proj))
    return linear(gated(gate, up), pad(module.down_proj.weight, (0, short)), module.down_proj.bias)


def _widened(part: nn.Linear, hidden: Tensor, more: int) -> Tensor:
    """The layer's output, with `more` zeros at the end of each row."""
    bias = None if part.bias is None else pad(part.bias, (0, more))
    return linear(hidden, pad(part.weight, (0, 0, 0, more)), bias)
