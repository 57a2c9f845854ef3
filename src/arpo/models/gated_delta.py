"""The gated delta rule after its convolution, for sequences with a window and a state.

This module runs inside vLLM too: it imports nothing but torch and transformers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import conv1d, softplus
from transformers.activations import ACT2FN
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)


def attend(
    mixer: Any,
    inputs_BCT: Tensor,
    update_BTH: Tensor,
    decay_BTH: Tensor,
    state_BHKV: Tensor,
    padding_BT: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Output of new tokens, [B, T, heads, value width], and the state after them.

    `inputs_BCT` are those of the convolution, with the last window before the new ones. `mixer` is a layer of
    transformers or of vLLM. A worker of vLLM may hold only some of the heads: those of the state.
    """
    heads, key_width, value_width = state_BHKV.shape[1:]
    channels, values = inputs_BCT.shape[1], heads * value_width
    mixed_BCT = conv1d(inputs_BCT, mixer.conv1d.weight, mixer.conv1d.bias, groups=channels)
    mixed_BTC = ACT2FN[mixer.activation](mixed_BCT).transpose(1, 2)
    query, key, value = mixed_BTC.split([(channels - values) // 2] * 2 + [values], 2)
    shared = mixer.num_v_heads // mixer.num_k_heads
    query_BTHK, key_BTHK = (
        each.unflatten(2, (-1, key_width)).repeat_interleave(shared, 2) for each in (query, key)
    )
    update_BTH = update_BTH.sigmoid()
    decay_BTH = -mixer.A_log.float().exp() * softplus(decay_BTH.float() + mixer.dt_bias)
    if padding_BT is not None:  # it neither updates the state nor lets it decay
        update_BTH, decay_BTH = (
            each.masked_fill(padding_BT[..., None], 0) for each in (update_BTH, decay_BTH)
        )
    rule = torch_recurrent_gated_delta_rule if update_BTH.shape[1] == 1 else torch_chunk_gated_delta_rule
    output_BTHV, state_BHKV = rule(
        query_BTHK,
        key_BTHK,
        value.unflatten(2, (-1, value_width)),
        g=decay_BTH,
        beta=update_BTH,
        initial_state=state_BHKV,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return output_BTHV, state_BHKV
