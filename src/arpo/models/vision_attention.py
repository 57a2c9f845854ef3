"""Vision attention without a Python loop over windows or images.

Stock transformers calls attention once per window (or image) of a packed batch. Windows have few different
lengths, so one batched call handles all windows of one length. The patch embedding, a convolution over inputs
of its kernel's size, becomes one matrix product. Everything derived from the image grids alone (window order,
rotary tables, segment lengths, indices of learned positions) is cached for each set of grids. `install`
changes one model instance; the classes of transformers, the weights and the results stay the same.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.vision_utils import get_vision_position_ids

from arpo.models import attention as kernels
from arpo.models.families import IMAGE_BOUNDS, WINDOW_BOUNDS, Family, VisionLanguageModel, family_of
from arpo.models.fused_ops import apply_vision_rotary

_MAX_CACHED_PATCHES = 2**18  # patches of cached layouts: about 200 megabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Runs of a packed sequence with attention among themselves, grouped by length.

    Lengths 4, 2, 4 give counts ((4, 2), (2, 1)) and an order with both runs of four first. If all runs have
    one length, the sequence is already grouped, and `order` and `inverse` are unused.
    """

    counts: tuple[tuple[int, int], ...]  # (length, number of runs)
    order: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, bounds: Tensor) -> Segments:
        starts_by_length: dict[int, list[int]] = {}
        edges = bounds.tolist()
        for start, end in pairwise(edges):
            if end > start:
                starts_by_length.setdefault(end - start, []).append(start)
        counts = tuple((length, len(starts)) for length, starts in starts_by_length.items())
        if len(counts) == 1:  # nothing to reorder
            return cls(counts=counts, order=bounds[:0], inverse=bounds[:0])
        runs = [torch.tensor(starts)[:, None] + torch.arange(n) for n, starts in starts_by_length.items()]
        order = torch.cat([run.flatten() for run in runs]).to(bounds.device)
        return cls(counts=counts, order=order, inverse=torch.argsort(order))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """All inputs of the vision tower derived from the image grids of a batch."""

    arguments: dict[str, Any]  # of the forward method of transformers
    segments: dict[str, Segments]  # by the name of the argument with their boundaries
    patches: int


def install(model: VisionLanguageModel) -> None:
    """Install grouped attention in this instance's vision tower. A second call has no effect."""
    visual, family = model.model.visual, family_of(model)
    if "forward" in vars(visual.rotary_pos_emb):
        return
    layouts: OrderedDict[tuple[object, ...], Layout] = OrderedDict()
    lock = threading.Lock()  # copies of the model share the layouts, and may run in two threads

    def add_layout(
        visual: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        grid_thw = kwargs["grid_thw"] if "grid_thw" in kwargs else args[1]  # on any device
        device = next(visual.parameters()).device
        key = (device, *map(tuple, grid_thw.tolist()))
        with lock:
            if key not in layouts:
                layouts[key] = _layout(visual, family, grid_thw.to(device))
            layouts.move_to_end(key)
            layout = layouts[key]
            while len(layouts) > 1 and sum(each.patches for each in layouts.values()) > _MAX_CACHED_PATCHES:
                layouts.popitem(last=False)
        return args, {**kwargs, **layout.arguments, "layout": layout}

    # transformers passes position ids to the rotary module only: pass the rotary tables instead.
    visual.rotary_pos_emb.forward = lambda _, tables: tables
    visual.register_forward_pre_hook(add_layout, with_kwargs=True)
    visual.patch_embed.forward = partial(_embed_patches, visual.patch_embed)
    for index, block in enumerate(visual.blocks):
        block.attn.forward = partial(_attend, block.attn, family.bounds_argument(visual, index))


def _layout(visual: Any, family: Family, grid_thw: Tensor) -> Layout:
    """The layout of these grids. If all are equal, that of the first is repeated, which is far faster."""
    equal = len(grid_thw) > 1 and len(set(map(tuple, grid_thw.tolist()))) == 1
    arguments = _arguments(visual, family, grid_thw[:1] if equal else grid_thw)
    if equal:
        arguments = _repeated(arguments, len(grid_thw))
    bounds = {name: arguments[name] for name in (IMAGE_BOUNDS, WINDOW_BOUNDS) if name in arguments}
    return Layout(
        arguments=arguments,
        segments={name: Segments.of(edges) for name, edges in bounds.items()},
        patches=len(arguments["position_ids"][0]),
    )


def _arguments(visual: Any, family: Family, grid_thw: Tensor) -> dict[str, Any]:
    make_rotary = type(visual.rotary_pos_emb).forward  # the forward of the instance only returns tables
    position_ids = get_vision_position_ids(grid_thw, visual.spatial_merge_size)
    tables = make_rotary(visual.rotary_pos_emb, position_ids, position_ids)
    return {**family.tower_arguments(visual, grid_thw), "position_ids": tables}


def _repeated(arguments: dict[str, Any], count: int) -> dict[str, Any]:
    """The arguments of one image, for this many images of its size."""

    def shifted(values: Tensor, by: int) -> Tensor:
        numbers = torch.arange(count, dtype=values.dtype, device=values.device)
        return (values + by * numbers[:, None]).flatten()

    def repeated(name: str, values: Any) -> Any:
        if name in (IMAGE_BOUNDS, WINDOW_BOUNDS):
            return torch.cat([values[:1], shifted(values[1:], patches)])
        if name == "window_index":
            return shifted(values, len(values))
        if name == "position_ids":
            return tuple(table.repeat(count, 1) for table in values)
        return values.repeat(count, *[1] * (values.dim() - 1))

    patches = len(arguments["position_ids"][0])
    return {name: repeated(name, values) for name, values in arguments.items()}


def _embed_patches(patch_embed: Any, patches_NP: Tensor) -> Tensor:
    weight: Tensor = patch_embed.proj.weight
    return linear(patches_NP.to(weight.dtype), weight.flatten(1), patch_embed.proj.bias)


def _attend(
    attention: Any,
    bounds: str,
    hidden_ND: Tensor,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    layout: Layout,
    **_: object,
) -> Tensor:
    """Forward of the attention module: query, key, value; rotary; one call per segment length; projection."""
    total = hidden_ND.shape[0]
    query, key, value = attention.qkv(hidden_ND).reshape(total, 3, attention.num_heads, -1).unbind(1)
    query, key = apply_vision_rotary(query, key, *position_embeddings)
    segments = layout.segments[bounds]
    if len(segments.counts) == 1:
        output = _attend_segments(attention, query, key, value, segments.counts[0][0])
    else:
        sizes = [length * count for length, count in segments.counts]
        grouped = [
            _Reordered.apply(x, segments.order, segments.inverse).split(sizes) for x in (query, key, value)
        ]
        parts = [
            _attend_segments(attention, q, k, v, length)
            for (length, _), q, k, v in zip(segments.counts, *grouped, strict=True)
        ]
        output = _Reordered.apply(torch.cat(parts), segments.inverse, segments.order)
    projected: Tensor = attention.proj(output)
    return projected


class _Reordered(torch.autograd.Function):
    """Permutation of rows; its gradient is an index lookup too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradients[0][inverse], None, None


def _attend_segments(attention: Any, query: Tensor, key: Tensor, value: Tensor, length: int) -> Tensor:
    """Attention within consecutive segments of one length, in one batched call."""
    query, key, value = (x.unflatten(0, (-1, length)).transpose(1, 2) for x in (query, key, value))
    output = kernels.dot_product_attention(query, key, value, scale=attention.scaling)
    return output.transpose(1, 2).flatten(0, 1).flatten(1)
