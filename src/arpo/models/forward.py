"""The model's forward pass as both engine and learner use it: transformers' own modules, called by parts.

Images are encoded once however often they are seen; positions come from the renderer; logits are made only
where a sampled token is predicted. Nothing here holds state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration

from arpo import vision
from arpo.rendering import Renderer
from arpo.types import Sample, Screenshot


def encode_images(
    model: Qwen2_5_VLForConditionalGeneration, screenshots: Sequence[Screenshot], renderer: Renderer
) -> Tensor:
    """Features of the screenshots' image tokens, one after the other: [sum of tokens, width]."""
    visual = model.model.visual
    patches = torch.from_numpy(
        np.concatenate([vision.patchify(shot, renderer.settings) for shot in screenshots])
    )
    grids = torch.tensor([renderer.grid(shot) for shot in screenshots])
    pixels = patches.to(visual.device, visual.dtype)
    features: Tensor = visual(pixels, grid_thw=grids.to(visual.device)).pooler_output
    return features


def features_by_name(
    model: Qwen2_5_VLForConditionalGeneration, screenshots: Iterable[Screenshot], renderer: Renderer
) -> dict[str, Tensor]:
    """Features of each distinct screenshot, by its sha256; each is encoded once, all in one batch."""
    distinct = {shot.sha256: shot for shot in screenshots}
    if not distinct:
        return {}
    counts = [vision.image_tokens(renderer.grid(shot), renderer.settings) for shot in distinct.values()]
    features_ND = encode_images(model, list(distinct.values()), renderer)
    return dict(zip(distinct, features_ND.split(counts), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Tokens of one sequence, or of its end: which of them are image slots, and their rotary positions."""

    token_ids: Sequence[int]
    slots_T: NDArray[np.bool_]
    positions_3T: NDArray[np.int64]

    @classmethod
    def of(cls, token_ids: Sequence[int], images: Sequence[Screenshot], renderer: Renderer) -> TokenRow:
        grids = [renderer.grid(shot) for shot in images]
        return cls(
            token_ids=token_ids,
            slots_T=renderer.image_slots(token_ids, grids),
            positions_3T=renderer.positions(token_ids, grids),
        )

    def after(self, start: int) -> TokenRow:
        return TokenRow(
            token_ids=self.token_ids[start:],
            slots_T=self.slots_T[start:],
            positions_3T=self.positions_3T[:, start:],
        )


def embed_rows(
    model: Qwen2_5_VLForConditionalGeneration,
    rows: Sequence[TokenRow],
    features: Sequence[Tensor],
    pad_id: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens_BT, embeds_BTD, positions_3BT), padded on the right; image features fill the slots in order."""
    width = max(len(row.token_ids) for row in rows)
    tokens_BT = np.full((len(rows), width), pad_id, dtype=np.int64)
    slots_BT = np.zeros((len(rows), width), dtype=bool)
    positions_3BT = np.zeros((3, len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        tokens_BT[index, :length] = row.token_ids
        slots_BT[index, :length] = row.slots_T
        positions_3BT[:, index, :length] = row.positions_3T
    tokens, slots, positions = (
        torch.from_numpy(array).to(model.device) for array in (tokens_BT, slots_BT, positions_3BT)
    )
    embeds_BTD: Tensor = model.model.language_model.embed_tokens(tokens)
    if features:
        embeds_BTD = embeds_BTD.masked_scatter(
            slots[..., None], torch.cat(list(features)).to(embeds_BTD.dtype)
        )
    return tokens, embeds_BTD, positions


def hidden_states(
    model: Qwen2_5_VLForConditionalGeneration,
    embeds_BTD: Tensor,
    positions_3BT: Tensor,
    mask: Tensor | None = None,
    cache: Any = None,
) -> Tensor:
    """The last hidden states. Without a mask attention is causal; with a cache it needs one."""
    output = model.model.language_model(
        inputs_embeds=embeds_BTD,
        position_ids=positions_3BT,
        attention_mask={"full_attention": mask},
        past_key_values=cache,
        use_cache=False,
    )
    hidden_BTD: Tensor = output.last_hidden_state
    return hidden_BTD


def sampled_logprobs(
    model: Qwen2_5_VLForConditionalGeneration,
    samples: Sequence[Sample],
    renderer: Renderer,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy) of every sampled token, at the temperature of sampling, in sample order.

    Sequences are padded on the right, where a causal model never looks. The entropy carries no gradient.
    """
    assert temperature > 0, "greedy answers have no log-probabilities to train on"
    rows = [TokenRow.of(sample.token_ids, sample.images, renderer) for sample in samples]
    shown = [shot for sample in samples for shot in sample.images]
    by_name = features_by_name(model, shown, renderer)
    features = [by_name[shot.sha256] for shot in shown]
    tokens_BT, embeds_BTD, positions_3BT = embed_rows(model, rows, features, renderer.pad_id)
    sampled_BT = torch.zeros_like(tokens_BT, dtype=torch.bool)
    for index, sample in enumerate(samples):
        sampled_BT[index, : len(sample.mask)] = torch.tensor(sample.mask, device=model.device)
    assert not sampled_BT[:, 0].any(), "the first token of a sequence is predicted by nothing"

    hidden_BTD = hidden_states(model, embeds_BTD, positions_3BT)
    hidden_ND = hidden_BTD[:, :-1][sampled_BT[:, 1:]]
    logps_NV = (model.lm_head(hidden_ND).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy_N = -(logps_NV.exp() * logps_NV).sum(-1)
    return logps_NV.gather(-1, tokens_BT[sampled_BT][:, None])[:, 0], entropy_N
