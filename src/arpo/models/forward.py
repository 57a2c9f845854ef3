"""Forward pass of the model, shared by engine and learner: it calls the modules of transformers one by one.

Each distinct image is encoded once. The renderer supplies positions. Logits are computed only where a
sampled token is predicted. Functions here hold no state.
"""

from __future__ import annotations

import math
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
from arpo.models.feature_cache import cached_features
from arpo.models.image_loader import ImageLoader
from arpo.models.memory_plan import MAX_LOGITS, activations_to_keep
from arpo.models.recompute import checkpointed, recomputing
from arpo.prompts import vision
from arpo.prompts.rendering import Renderer
from arpo.types import Sample, Screenshot

MAX_PIXEL_VALUES = 2**24  # values cut into patches at once
MIN_PACKED_TOKENS = 1024  # per sample on average; longer sequences get attention calls of their own


def encode_images(
    model: VisionLanguageModel,
    screenshots: Sequence[Screenshot],
    renderer: Renderer,
    loader: ImageLoader | None = None,
) -> Tensor:
    """Features of the image tokens of all screenshots, concatenated: [sum of tokens, levels, width]."""
    visual = model.model.visual
    grids = torch.tensor([renderer.grid(shot) for shot in screenshots])
    pixels = _patches(screenshots, renderer, visual.device, loader).to(visual.dtype)
    return family_of(model).image_features(visual(pixels, grid_thw=grids))


def _patches(
    screenshots: Sequence[Screenshot], renderer: Renderer, device: torch.device, loader: ImageLoader | None
) -> Tensor:
    """Patches of all screenshots, concatenated. A GPU receives pixels and cuts the patches itself."""
    settings = renderer.settings
    if device.type == "cpu":
        return torch.from_numpy(np.concatenate([vision.patchify(shot, settings) for shot in screenshots]))
    if loader is None:
        pixels = [vision.pixels(shot, settings) for shot in screenshots]
    else:
        pixels = loader.load(screenshots)
    return torch.cat(
        [
            vision.patchify_pixels(torch.from_numpy(np.stack(batch)).to(device), settings).flatten(0, 1)
            for batch in _batch_by_size(pixels)
        ]
    )


def _batch_by_size(images: Sequence[NDArray[np.uint8]]) -> Iterator[list[NDArray[np.uint8]]]:
    """Batches of consecutive images of one size, in order, up to `MAX_PIXEL_VALUES` each."""
    batch: list[NDArray[np.uint8]] = []
    for pixels in images:
        if batch and (pixels.shape != batch[0].shape or pixels.size * (len(batch) + 1) > MAX_PIXEL_VALUES):
            yield batch
            batch = []
        batch.append(pixels)
    yield batch


def features_by_sha256(
    model: VisionLanguageModel,
    screenshots: Iterable[Screenshot],
    renderer: Renderer,
    loader: ImageLoader | None = None,
) -> dict[str, Tensor]:
    """Features of each distinct screenshot. All are encoded in one batch."""
    distinct = {shot.sha256: shot for shot in screenshots}
    if not distinct:
        return {}
    counts = [vision.image_tokens(renderer.grid(shot), renderer.settings) for shot in distinct.values()]
    encode, visual = partial(encode_images, model, renderer=renderer, loader=loader), model.model.visual
    if hasattr(visual, "feature_cache"):  # only a frozen tower has one
        features_NLD = cached_features(visual, distinct, encode)
    else:
        features_NLD = encode(list(distinct.values()))
    return dict(zip(distinct, features_NLD.split(counts), strict=True))


def batch_by_patches(
    screenshots: Sequence[Screenshot], renderer: Renderer, max_patches: int
) -> Iterator[list[Screenshot]]:
    """Batches of consecutive screenshots with at most `max_patches` patches; a larger screenshot is alone."""
    batch: list[Screenshot] = []
    patches = 0
    for shot in screenshots:
        count = math.prod(renderer.grid(shot))
        if batch and patches + count > max_patches:
            yield batch
            batch, patches = [], 0
        batch.append(shot)
        patches += count
    if batch:
        yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """Tokens of a sequence or of its suffix, with a mask of image positions and rotary positions."""

    token_ids: Sequence[int]
    image_mask_T: NDArray[np.bool_]
    positions_3T: NDArray[np.int64]

    @classmethod
    def of(cls, token_ids: Sequence[int], images: Sequence[Screenshot], renderer: Renderer) -> TokenRow:
        grids = [renderer.grid(shot) for shot in images]
        image_mask_T = renderer.image_slots(token_ids, grids)
        return cls(
            token_ids=token_ids,
            image_mask_T=image_mask_T,
            positions_3T=renderer.positions(token_ids, grids, slots_T=image_mask_T),
        )

    @classmethod
    def joined(cls, rows: Sequence[TokenRow]) -> TokenRow:
        """Several sequences in one row; each keeps its own positions."""
        return cls(
            token_ids=list(chain.from_iterable(row.token_ids for row in rows)),
            image_mask_T=np.concatenate([row.image_mask_T for row in rows]),
            positions_3T=np.concatenate([row.positions_3T for row in rows], 1),
        )

    def suffix(self, start: int) -> TokenRow:
        return TokenRow(
            token_ids=self.token_ids[start:],
            image_mask_T=self.image_mask_T[start:],
            positions_3T=self.positions_3T[:, start:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deepstack:
    """Image features added after the first language layers, entry n after layer n, at image positions."""

    image_mask_BT: Tensor
    features_NLD: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRows:
    """Input of the language model, padded on the right."""

    tokens_BT: Tensor
    embeds_BTD: Tensor
    positions_3BT: Tensor
    deepstack: Deepstack | None  # None for models with one level of features

    def split(self, max_tokens: int) -> Iterator[tuple[int, EmbeddedRows]]:
        """Parts of a single row, each with the index of its first token."""
        for first in range(0, self.tokens_BT.shape[1], max_tokens):
            yield first, self._slice_tokens(first, first + max_tokens)

    def _slice_tokens(self, first: int, end: int) -> EmbeddedRows:
        deepstack = self.deepstack
        if deepstack is not None:
            before, mask_1T = (
                int(deepstack.image_mask_BT[:, :first].sum()),
                deepstack.image_mask_BT[:, first:end],
            )
            features_NLD = deepstack.features_NLD[before : before + int(mask_1T.sum())]
            deepstack = Deepstack(image_mask_BT=mask_1T, features_NLD=features_NLD)
        return EmbeddedRows(
            tokens_BT=self.tokens_BT[:, first:end],
            embeds_BTD=self.embeds_BTD[:, first:end],
            positions_3BT=self.positions_3BT[:, :, first:end],
            deepstack=deepstack,
        )


def embed_rows(
    model: VisionLanguageModel, rows: Sequence[TokenRow], features: Sequence[Tensor], pad_id: int
) -> EmbeddedRows:
    """Embed rows. The `features` of the images, [tokens, levels, width] each, fill the image positions."""
    width = max(len(row.token_ids) for row in rows)
    tokens_BT = np.full((len(rows), width), pad_id, dtype=np.int64)
    image_mask_BT = np.zeros((len(rows), width), dtype=bool)
    positions_3BT = np.zeros((3, len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        tokens_BT[index, :length] = row.token_ids
        image_mask_BT[index, :length] = row.image_mask_T
        positions_3BT[:, index, :length] = row.positions_3T
    tokens, image_mask, positions = (
        torch.from_numpy(array).to(model.device) for array in (tokens_BT, image_mask_BT, positions_3BT)
    )
    embeds_BTD: Tensor = model.model.language_model.embed_tokens(tokens)
    deepstack = None
    if features:
        features_NLD = torch.cat(list(features)).to(embeds_BTD.dtype)
        embeds_BTD = embeds_BTD.masked_scatter(image_mask[..., None], features_NLD[:, 0])
        if features_NLD.shape[1] > 1:
            deepstack = Deepstack(image_mask_BT=image_mask, features_NLD=features_NLD[:, 1:])
    return EmbeddedRows(tokens_BT=tokens, embeds_BTD=embeds_BTD, positions_3BT=positions, deepstack=deepstack)


def hidden_states(
    model: VisionLanguageModel,
    embeds_BTD: Tensor,
    positions_3BT: Tensor,
    mask: Tensor | None = None,
    cache: Any = None,
    deepstack: Deepstack | None = None,
    lengths: tuple[int, ...] | None = None,
    pool: Any = None,
) -> Tensor:
    """The last hidden states. Attention is causal without a mask; a cache requires a mask.

    `lengths` are the lengths of the sequences packed into one row. `pool` (a `PoolStep`) is a cache without a
    mask, for new tokens of several sequences packed into one row.
    """
    extra: dict[str, Any] = {} if lengths is None else {"lengths": lengths}
    if pool is not None:
        extra["pool"], cache = pool, pool
        mask = embeds_BTD.new_ones((1, 1, 1, 1), dtype=torch.bool)  # unused, but without it a mask is built
    if deepstack is not None:
        levels = list(deepstack.features_NLD.unbind(1))
        extra |= {"visual_pos_masks": deepstack.image_mask_BT, "deepstack_visual_embeds": levels}
    output = model.model.language_model(
        inputs_embeds=embeds_BTD,
        position_ids=positions_3BT,
        attention_mask=family_of(model).attention_mask(mask),
        past_key_values=cache,
        use_cache=False,
        **extra,
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
    loader: ImageLoader | None = None,
    reserved: int = 0,
) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy) of every sampled token at the sampling temperature, in sample order.

    Sequences are packed into one row or padded on the right, where causal attention never looks. By default a
    GPU packs if samples have at least `MIN_PACKED_TOKENS` tokens on average. The entropy carries no gradient.
    Activations leave `reserved` bytes of the GPU free, for an engine that samples at the same time.
    """
    assert temperature > 0, "greedy answers have no log-probabilities to train on"
    assert not any(sample.mask[0] for sample in samples), (
        "the first token of a sequence cannot be a sampled one"
    )
    on_gpu = model.device.type == "cuda"
    if packed is None:
        unpadded = sum(len(sample.token_ids) for sample in samples)
        packed = on_gpu and unpadded >= MIN_PACKED_TOKENS * len(samples)
    rows = [TokenRow.of(sample.token_ids, sample.images, renderer) for sample in samples]
    lengths = tuple(len(row.token_ids) for row in rows) if packed else None
    screenshots = [shot for sample in samples for shot in sample.images]
    sampled_BT = _mask_tensor([sample.mask for sample in samples], packed).to(model.device)
    predicting_N = sampled_BT.roll(-1, 1).flatten().nonzero()[:, 0]  # the index before each sampled token
    tokens = sampled_BT.numel()  # with padding
    recompute = (
        _recompute_context(model, tokens, screenshots, renderer, reserved) if on_gpu else nullcontext()
    )
    with recompute, _last_mlp_at(model, predicting_N):
        encoded = features_by_sha256(model, screenshots, renderer, loader)
        features = [encoded[shot.sha256] for shot in screenshots]
        batch = embed_rows(model, [TokenRow.joined(rows)] if packed else rows, features, renderer.pad_id)
        hidden_BTD = hidden_states(
            model, batch.embeds_BTD, batch.positions_3BT, deepstack=batch.deepstack, lengths=lengths
        )
    hidden_ND = hidden_BTD.flatten(0, 1)[predicting_N]
    return _token_logprobs(model.lm_head, hidden_ND, batch.tokens_BT[sampled_BT], temperature)


def _recompute_context(
    model: VisionLanguageModel,
    tokens: int,
    screenshots: Sequence[Screenshot],
    renderer: Renderer,
    reserved: int,
) -> AbstractContextManager[None]:
    """If gradients are enabled, keep as many activations for the backward pass as fit on the GPU."""
    if not torch.is_grad_enabled():
        return nullcontext()
    grids = {shot.sha256: renderer.grid(shot) for shot in screenshots}
    patches = sum(rows * columns for _, rows, columns in grids.values())
    return recomputing(model, activations_to_keep(model, tokens, patches, reserved))


@contextmanager
def _last_mlp_at(model: VisionLanguageModel, indices_N: Tensor) -> Iterator[None]:
    """Run the MLP of the last layer only at these indices: no other output is used.

    Its output is zero elsewhere. Activations of the last layer must be kept: it could not be recomputed
    later.
    """
    mlp = model.model.language_model.layers[-1].mlp
    instance_forward, full_forward = vars(mlp).get("forward"), mlp.forward

    def forward(hidden_BTD: Tensor) -> Tensor:
        hidden_ND = hidden_BTD.flatten(0, 1)
        [output_ND] = full_forward(hidden_ND[None, indices_N])  # a mixture of experts takes no other shape
        return torch.zeros_like(hidden_ND).index_copy(0, indices_N, output_ND).view_as(hidden_BTD)

    mlp.forward = forward
    try:
        yield
    finally:
        if instance_forward is None:
            del mlp.forward
        else:
            mlp.forward = instance_forward


def _mask_tensor(masks: Sequence[Sequence[int]], packed: bool) -> Tensor:
    rows = [b"".join(map(bytes, masks))] if packed else [bytes(mask) for mask in masks]
    width = max(map(len, rows))
    mask_BT = np.frombuffer(b"".join(row.ljust(width, b"\0") for row in rows), dtype=np.bool_)
    return torch.from_numpy(mask_BT.reshape(len(rows), width).copy())


def _token_logprobs(
    head: nn.Linear, hidden_ND: Tensor, tokens_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Compute in chunks of at most `MAX_LOGITS` logits; the backward pass recomputes them."""
    rows = max(1, MAX_LOGITS // head.weight.shape[0])
    if len(hidden_ND) <= rows:
        return _chunk_logprobs(head, hidden_ND, tokens_N, temperature)
    parts = [
        checkpointed(_chunk_logprobs, head, hidden, tokens, temperature)
        for hidden, tokens in zip(hidden_ND.split(rows), tokens_N.split(rows), strict=True)
    ]
    logp_N, entropy_N = (torch.cat(each) for each in zip(*parts, strict=True))
    return logp_N, entropy_N


def _chunk_logprobs(
    head: nn.Linear, hidden_ND: Tensor, tokens_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    logps_NV = (head(hidden_ND).float() / temperature).log_softmax(-1)
    with torch.no_grad():
        entropy_N = -(logps_NV.exp() * logps_NV).sum(-1)
    return logps_NV.gather(-1, tokens_N[:, None])[:, 0], entropy_N
