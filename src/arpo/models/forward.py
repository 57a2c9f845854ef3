"""The model's forward pass as both engine and learner use it: transformers' own modules, called by parts.

Images are encoded once however often they are seen; positions come from the renderer; logits are made only
where a sampled token is predicted. Nothing here holds state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from arpo.models.families import VisionLanguageModel, family_of
from arpo.models.feature_cache import kept_features
from arpo.models.image_loader import Pictures
from arpo.models.memory_plan import MOST_LOGITS, spare
from arpo.models.recompute import again, recomputing
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.types import Sample, Screenshot

MOST_PIXELS = 2**24  # values that are cut into patches at once
LONG = 1024  # tokens from which on a sequence is worth an attention call of its own


def encode_images(
    model: VisionLanguageModel,
    screenshots: Sequence[Screenshot],
    renderer: Renderer,
    pictures: Pictures | None = None,
) -> Tensor:
    """Features of the screenshots' image tokens, one after the other: [sum of tokens, levels, width]."""
    visual = model.model.visual
    grids = torch.tensor([renderer.grid(shot) for shot in screenshots])
    pixels = _patches(screenshots, renderer, visual.device, pictures).to(visual.dtype)
    return family_of(model).image_features(visual(pixels, grid_thw=grids.to(visual.device)))


def _patches(
    screenshots: Sequence[Screenshot], renderer: Renderer, device: torch.device, pictures: Pictures | None
) -> Tensor:
    """The patches of all screenshots, one after the other. A GPU gets pixels and makes patches itself."""
    settings = renderer.settings
    if device.type == "cpu":
        return torch.from_numpy(np.concatenate([vision.patchify(shot, settings) for shot in screenshots]))
    if pictures is None:
        pixels = [vision.pixels(shot, settings) for shot in screenshots]
    else:
        pixels = pictures.take(screenshots)
    return torch.cat(
        [
            vision.patchify_pixels(torch.from_numpy(np.stack(alike)).to(device), settings).flatten(0, 1)
            for alike in _alike(pixels)
        ]
    )


def _alike(pictures: Sequence[NDArray[np.uint8]]) -> Iterator[list[NDArray[np.uint8]]]:
    """The pictures in order, neighbours of one size together, as far as they are not large."""
    together: list[NDArray[np.uint8]] = []
    for picture in pictures:
        if together and (
            picture.shape != together[0].shape or picture.size * (len(together) + 1) > MOST_PIXELS
        ):
            yield together
            together = []
        together.append(picture)
    yield together


def features_by_name(
    model: VisionLanguageModel,
    screenshots: Iterable[Screenshot],
    renderer: Renderer,
    pictures: Pictures | None = None,
) -> dict[str, Tensor]:
    """Features of each distinct screenshot, by its sha256; each is encoded once, all in one batch."""
    distinct = {shot.sha256: shot for shot in screenshots}
    if not distinct:
        return {}
    counts = [vision.image_tokens(renderer.grid(shot), renderer.settings) for shot in distinct.values()]
    encode, visual = partial(encode_images, model, renderer=renderer, pictures=pictures), model.model.visual
    if hasattr(visual, "feature_cache"):  # then it is frozen
        features_NLD = kept_features(visual, distinct, encode)
    else:
        features_NLD = encode(list(distinct.values()))
    return dict(zip(distinct, features_NLD.split(counts), strict=True))


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

    @classmethod
    def joined(cls, rows: Sequence[TokenRow]) -> TokenRow:
        """Several sequences, one after the other; each keeps its own positions."""
        return cls(
            token_ids=list(chain.from_iterable(row.token_ids for row in rows)),
            slots_T=np.concatenate([row.slots_T for row in rows]),
            positions_3T=np.concatenate([row.positions_3T for row in rows], 1),
        )

    def after(self, start: int) -> TokenRow:
        return TokenRow(
            token_ids=self.token_ids[start:],
            slots_T=self.slots_T[start:],
            positions_3T=self.positions_3T[:, start:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deepstack:
    """Levels of image features that the first language layers add, each after its own layer, at the slots."""

    slots_BT: Tensor
    features_NLD: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedded:
    """Rows as the language model takes them, padded on the right."""

    tokens_BT: Tensor
    embeds_BTD: Tensor
    positions_3BT: Tensor
    deepstack: Deepstack | None  # a model with one level of features has none

    def between(self, first: int, end: int) -> Embedded:
        """These tokens of a single row."""
        deepstack = self.deepstack
        if deepstack is not None:
            before, slots_1T = int(deepstack.slots_BT[:, :first].sum()), deepstack.slots_BT[:, first:end]
            features_NLD = deepstack.features_NLD[before : before + int(slots_1T.sum())]
            deepstack = Deepstack(slots_BT=slots_1T, features_NLD=features_NLD)
        return Embedded(
            tokens_BT=self.tokens_BT[:, first:end],
            embeds_BTD=self.embeds_BTD[:, first:end],
            positions_3BT=self.positions_3BT[:, :, first:end],
            deepstack=deepstack,
        )


def embed_rows(
    model: VisionLanguageModel, rows: Sequence[TokenRow], features: Sequence[Tensor], pad_id: int
) -> Embedded:
    """Image features, [tokens, levels, width] of each image, fill the slots in order."""
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
    deepstack = None
    if features:
        features_NLD = torch.cat(list(features)).to(embeds_BTD.dtype)
        embeds_BTD = embeds_BTD.masked_scatter(slots[..., None], features_NLD[:, 0])
        if features_NLD.shape[1] > 1:
            deepstack = Deepstack(slots_BT=slots, features_NLD=features_NLD[:, 1:])
    return Embedded(tokens_BT=tokens, embeds_BTD=embeds_BTD, positions_3BT=positions, deepstack=deepstack)


def hidden_states(
    model: VisionLanguageModel,
    embeds_BTD: Tensor,
    positions_3BT: Tensor,
    mask: Tensor | None = None,
    cache: Any = None,
    deepstack: Deepstack | None = None,
    lengths: tuple[int, ...] | None = None,
) -> Tensor:
    """The last hidden states. Without a mask attention is causal; with a cache it needs one.

    `lengths`: of the sequences that are packed into one row.
    """
    deeper: dict[str, Any] = {} if lengths is None else {"lengths": lengths}
    if deepstack is not None:
        levels = list(deepstack.features_NLD.unbind(1))
        deeper |= {"visual_pos_masks": deepstack.slots_BT, "deepstack_visual_embeds": levels}
    output = model.model.language_model(
        inputs_embeds=embeds_BTD,
        position_ids=positions_3BT,
        attention_mask=family_of(model).attention_mask(mask),
        past_key_values=cache,
        use_cache=False,
        **deeper,
    )
    hidden_BTD: Tensor = output.last_hidden_state
    return hidden_BTD


def sampled_logprobs(
    model: VisionLanguageModel,
    samples: Sequence[Sample],
    renderer: Renderer,
    temperature: float,
    *,
    packed: bool | None = None,
    pictures: Pictures | None = None,
) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy) of every sampled token, at the temperature of sampling, in sample order.

    Sequences are packed into one row, or padded on the right, where a causal model never looks; without a
    choice, long ones on a GPU are packed. The entropy carries no gradient.
    """
    assert temperature > 0, "greedy answers have no log-probabilities to train on"
    assert not any(sample.mask[0] for sample in samples), "a sequence's first token is predicted by nothing"
    on_gpu = model.device.type == "cuda"
    if packed is None:
        packed = on_gpu and sum(len(sample.token_ids) for sample in samples) >= LONG * len(samples)
    rows = [TokenRow.of(sample.token_ids, sample.images, renderer) for sample in samples]
    lengths = tuple(len(row.token_ids) for row in rows) if packed else None
    shown = [shot for sample in samples for shot in sample.images]
    sampled_BT = _padded([sample.mask for sample in samples], packed).to(model.device)
    predicting_N = sampled_BT.roll(-1, 1).flatten().nonzero()[:, 0]  # places, each before a sampled token
    tokens = sampled_BT.numel()  # with what is padded
    keeping = _keeping_what_fits(model, tokens, shown, renderer) if on_gpu else nullcontext()
    with keeping, _last_layer_at(model, predicting_N):
        by_name = features_by_name(model, shown, renderer, pictures)
        features = [by_name[shot.sha256] for shot in shown]
        batch = embed_rows(model, [TokenRow.joined(rows)] if packed else rows, features, renderer.pad_id)
        hidden_BTD = hidden_states(
            model, batch.embeds_BTD, batch.positions_3BT, deepstack=batch.deepstack, lengths=lengths
        )
    hidden_ND = hidden_BTD.flatten(0, 1)[predicting_N]
    return _token_logprobs(model.lm_head, hidden_ND, batch.tokens_BT[sampled_BT], temperature)


def _keeping_what_fits(
    model: VisionLanguageModel, tokens: int, shown: Sequence[Screenshot], renderer: Renderer
) -> AbstractContextManager[None]:
    """A forward pass that is to be followed by a backward one keeps as much as the GPU has room for."""
    if not torch.is_grad_enabled():
        return nullcontext()
    grids = {shot.sha256: renderer.grid(shot) for shot in shown}
    patches = sum(rows * columns for _, rows, columns in grids.values())
    return recomputing(model, spare(model, tokens, patches))


@contextmanager
def _last_layer_at(model: VisionLanguageModel, places_N: Tensor) -> Iterator[None]:
    """What follows the last attention is made at these places alone, as no other ones are looked at.

    Elsewhere the last layer's gated part is zero. What it makes must be kept: it could not be made again.
    """
    gated = model.model.language_model.layers[-1].mlp
    own, everywhere = vars(gated).get("forward"), gated.forward

    def forward(hidden_BTD: Tensor) -> Tensor:
        hidden_ND = hidden_BTD.flatten(0, 1)
        made_ND = everywhere(hidden_ND[places_N])
        return torch.zeros_like(hidden_ND).index_copy(0, places_N, made_ND).view_as(hidden_BTD)

    gated.forward = forward
    try:
        yield
    finally:
        if own is None:
            del gated.forward
        else:
            gated.forward = own


def _padded(masks: Sequence[Sequence[bool]], packed: bool) -> Tensor:
    if packed:
        return torch.tensor([list(chain.from_iterable(masks))])
    width = max(map(len, masks))
    return torch.tensor([[*mask, *[False] * (width - len(mask))] for mask in masks])


def _token_logprobs(
    head: nn.Linear, hidden_ND: Tensor, tokens_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Of so few tokens at a time that their logits stay small; the backward pass makes them again."""
    rows = max(1, MOST_LOGITS // head.weight.shape[0])
    if len(hidden_ND) <= rows:
        return _logprobs_at_once(head, hidden_ND, tokens_N, temperature)
    parts = [
        again(_logprobs_at_once, head, hidden, tokens, temperature)
        for hidden, tokens in zip(hidden_ND.split(rows), tokens_N.split(rows), strict=True)
    ]
    logp_N, entropy_N = (torch.cat(each) for each in zip(*parts, strict=True))
    return logp_N, entropy_N


def _logprobs_at_once(
    head: nn.Linear, hidden_ND: Tensor, tokens_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logps_NV = (head(hidden_ND).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy_N = -(logps_NV.exp() * logps_NV).sum(-1)
    return logps_NV.gather(-1, tokens_N[:, None])[:, 0], entropy_N
