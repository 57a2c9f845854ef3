"""Gated linear attention of Qwen3.5 for sequences packed into one row, and for cached sequences.

A layer of transformers begins with an empty convolution window and a recurrent state of zero, and carries
both to the end of the row. Here each sequence of the learner gets a call of its own, so that neither crosses
a boundary. In the engine, the rows of a batch go on from their cached windows and states, and padding on the
right changes neither. `install` changes one model instance; the classes of transformers, the weights and the
results stay the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from arpo.errors import UserError
from arpo.models.families import VisionLanguageModel
from arpo.models.gated_delta import attend
from arpo.models.kv_cache import CacheStep, LinearStates
from arpo.models.token_pool import PoolStep

KERNELS = "flash-linear-attention"
_HOPPER = (9, 0)
_WRONG_GRADIENTS = (3, 4, 0), (3, 7, 1)  # flash-linear-attention refuses these versions of Triton on Hopper


def install(model: VisionLanguageModel) -> None:
    """Change the layers with linear attention of this instance; other models have none."""
    for layer in model.model.language_model.layers:
        if mixer := getattr(layer, "linear_attn", None):
            mixer.forward = partial(_forward, mixer)


def _version(package: str) -> str:
    """Version of an installed package, or ""."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def has_kernels(version_of: Callable[[str], str] = _version) -> bool:
    """Whether transformers computes linear attention with flash-linear-attention."""
    return bool(version_of(KERNELS))


def check_training(model: Any, version_of: Callable[[str], str] = _version) -> None:
    """Raises UserError if flash-linear-attention cannot train this model on this GPU."""
    linear = any(hasattr(layer, "linear_attn") for layer in model.model.language_model.layers)
    if not linear or model.device.type != "cuda" or not has_kernels(version_of):
        return
    if version_of("tilelang"):  # has this backward pass too
        return
    triton, (first, mended) = version_of("triton"), _WRONG_GRADIENTS
    number = tuple(int(part) for part in triton.split("+")[0].split(".")[:3] if part.isdigit())
    if torch.cuda.get_device_capability(model.device) == _HOPPER and first <= number < mended:
        raise UserError(
            f"Triton {triton} computes wrong gradients of linear attention on this GPU: upgrade PyTorch to a "
            f"version with Triton {'.'.join(map(str, mended))} or later, or uninstall {KERNELS}"
        )


def _forward(
    mixer: Any,
    hidden_states: Tensor,
    cache_params: Any = None,
    lengths: tuple[int, ...] | None = None,
    **options: Any,
) -> Tensor:
    """`lengths` are the lengths of the sequences packed into one row. A cache may be that of transformers."""
    if isinstance(cache_params, CacheStep):
        return _advance(mixer, hidden_states, cache_params.linear, cache_params.rows, cache_params.widths_B)
    if isinstance(cache_params, PoolStep):
        return _pool_forward(mixer, hidden_states, cache_params)
    forward = partial(type(mixer).forward, mixer, cache_params=cache_params, **options)
    if lengths is None:
        return forward(hidden_states)
    return torch.cat([forward(part_1TD) for part_1TD in hidden_states.split(lengths, 1)], 1)


def _pool_forward(mixer: Any, hidden_1ND: Tensor, step: PoolStep) -> Tensor:
    """New tokens of several sequences in one row. When all have one, they are the rows of a batch."""
    if step.sequences.max_width == 1:
        return _advance(mixer, hidden_1ND.transpose(0, 1), step.linear, step.rows_B).transpose(0, 1)
    outputs = [
        _advance(mixer, hidden_1ND[:, span.first : span.end], step.linear, row_1)
        for span, row_1 in zip(step.sequences.spans, step.rows_B.split(1), strict=True)
    ]
    return torch.cat(outputs, 1)


def _advance(
    mixer: Any,
    hidden_BTD: Tensor,
    linear: LinearStates,
    rows: slice | Tensor,
    widths_B: Tensor | None = None,
) -> Tensor:
    """New tokens of cached sequences: the layer of transformers with a state for each row.

    `widths_B` are the new tokens of each row; None if there is no padding.
    """
    window_BCW, state_BHKV = linear.read(mixer.layer_idx, rows)
    inputs_BCT = torch.cat([window_BCW, mixer.in_proj_qkv(hidden_BTD).transpose(1, 2)], 2)
    update_BTH, decay_BTH = mixer.in_proj_b(hidden_BTD), mixer.in_proj_a(hidden_BTD)
    padding_BT = None
    if widths_B is not None:
        padding_BT = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device) >= widths_B[:, None]
    output_BTHV, state_BHKV = attend(mixer, inputs_BCT, update_BTH, decay_BTH, state_BHKV, padding_BT)
    window_BCW = _last_inputs(inputs_BCT, window_BCW.shape[2], widths_B)
    linear.write(mixer.layer_idx, rows, window_BCW, state_BHKV)
    gate_BTHV = mixer.in_proj_z(hidden_BTD).view_as(output_BTHV)
    normed_ND = mixer.norm(output_BTHV.flatten(0, 2), gate_BTHV.flatten(0, 2))
    output_BTD: Tensor = mixer.out_proj(normed_ND.view(*hidden_BTD.shape[:2], -1))
    return output_BTD


def _last_inputs(inputs_BCT: Tensor, count: int, widths_B: Tensor | None) -> Tensor:
    """The last inputs of each row before its padding; the first `count` ones are those of the last window."""
    if widths_B is None:
        return inputs_BCT[:, :, inputs_BCT.shape[2] - count :]
    index_BW = widths_B[:, None] + torch.arange(count, device=widths_B.device)
    return inputs_BCT.gather(2, index_BW[:, None].expand(-1, inputs_BCT.shape[1], -1))
