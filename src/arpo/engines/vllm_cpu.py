"""Runs inside vLLM's workers on CPUs: gated linear attention with plain weights, in any precision.

That of vLLM 0.32 refuses float32. On some CPUs it computes with packed weights, which updates do not reach.
If any layer has adapters, vLLM also chooses Triton for the experts of a mixture, which a CPU does not have.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from vllm.forward_context import get_forward_context  # type: ignore[import-not-found]
from vllm.model_executor.layers.fused_moe import (  # type: ignore[import-not-found]
    unquantized_fused_moe_method,
)
from vllm.model_executor.layers.fused_moe.oracle.unquantized import (  # type: ignore[import-not-found]
    select_unquantized_moe_backend,
)
from vllm.model_executor.layers.mamba.mamba_utils import (  # type: ignore[import-not-found]
    is_conv_state_dim_first,
)
from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention  # type: ignore[import-not-found]
from vllm.utils.torch_utils import (  # type: ignore[import-not-found]
    LayerNameType,
    _resolve_layer_name,
)


def install() -> None:
    """Replace both before vLLM makes its first layer."""
    gdn_attention.cpu_gdn_attention_core = _attend
    unquantized_fused_moe_method.select_unquantized_moe_backend = _select


def _select(moe_config: Any) -> Any:
    """The kernels of experts without adapters: ARPO adapts none."""
    return select_unquantized_moe_backend(replace(moe_config, is_lora_enabled=False))


def _attend(
    mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor, layer_name: LayerNameType
) -> None:
    """Write the outputs of all tokens to `core_attn_out`, and update the states of their sequences."""
    from arpo.models.gated_delta import attend  # here: only some models need transformers

    context = get_forward_context()
    if context.attn_metadata is None:  # a trial run without a cache
        return
    layer = context.no_compile_layers[_resolve_layer_name(layer_name)]
    step = context.attn_metadata[layer.prefix]
    windows_NCW, states_NHVK = layer.kv_cache
    if not is_conv_state_dim_first():
        windows_NCW = windows_NCW.transpose(1, 2)
    slots = step.non_spec_state_indices_tensor.tolist()
    bounds = step.non_spec_query_start_loc.tolist()
    for number, (start, end) in enumerate(pairwise(bounds)):
        window_1CW, state_1HVK = (each[slots[number]][None] for each in (windows_NCW, states_NHVK))
        if step.has_initial_state is not None and not step.has_initial_state[number]:
            window_1CW, state_1HVK = torch.zeros_like(window_1CW), torch.zeros_like(state_1HVK)
        inputs_1CT = torch.cat([window_1CW, mixed_qkv[start:end].T[None]], 2)
        update_1TH, decay_1TH = (each[start:end][None] for each in (b, a))
        output_1THV, state_1HKV = attend(layer, inputs_1CT, update_1TH, decay_1TH, state_1HVK.transpose(2, 3))
        core_attn_out[start:end] = output_1THV[0]
        windows_NCW[slots[number]] = inputs_1CT[0, :, -window_1CW.shape[2] :]
        states_NHVK[slots[number]] = state_1HKV[0].transpose(1, 2)
