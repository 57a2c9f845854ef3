"""A model whose tensors are sharded among the ranks of a learner (FSDP2)."""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from arpo.algorithms.microbatches import Microbatch
from arpo.config import Config
from arpo.models.families import VisionLanguageModel
from arpo.models.forward import sampled_logprobs
from arpo.models.image_loader import ImageLoader
from arpo.models.linear_attention import check_training
from arpo.models.loading import meta_model
from arpo.models.trainable import set_trainable
from arpo.prompts.rendering import Renderer
from arpo.types import Message, Sample, Screenshot


def sharded_model(
    config: Config,
    device: torch.device,
    full_model: VisionLanguageModel | None,
    cache_owner: VisionLanguageModel | None,
) -> Any:
    """The recipe's model with this rank's shards; rank 0's `full_model` supplies the values.

    Calling the model on samples runs `sampled_logprobs`: FSDP gathers only in the forward call of a module. A
    frozen tower shares the feature cache of `cache_owner`, which has the same tower.
    """
    model: Any = meta_model(config.model)
    set_trainable(model, config.model, config.run.seed)
    visual, layers = model.model.visual, model.model.language_model.layers
    frozen_tower = hasattr(visual, "feature_cache")
    if frozen_tower and cache_owner is not None:
        visual.feature_cache = cache_owner.model.visual.feature_cache
    model.forward = partial(_forward, model)
    shard = partial(
        fully_shard,
        mesh=init_device_mesh(device.type, (config.optim.ranks,)),
        mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32),
    )
    for unit in layers if frozen_tower else [*visual.blocks, visual, *layers]:
        _materialise(unit, device)
        shard(unit)
    _materialise(model, device)
    check_training(model)  # before, it was on no device
    model.tie_weights()
    shard(model, ignored_params={p for p in visual.parameters() if frozen_tower and not p.requires_grad})
    fill_from_rank_0(_tensors(model), None if full_model is None else _tensors(full_model))
    return model


def _forward(
    model: VisionLanguageModel,
    microbatch: Microbatch,
    renderer: Renderer,
    temperature: float,
    loader: ImageLoader | None,
) -> tuple[Tensor, Tensor]:
    """Add a filler if no sample has an image: both towers run on all ranks or on none."""
    logprobs = partial(sampled_logprobs, model, renderer=renderer, temperature=temperature, loader=loader)
    if any(sample.images for sample in microbatch):
        logp_T, entropy_T = logprobs(microbatch)
        return logp_T.clone(), entropy_T  # FSDP does not accept views
    logp_T, entropy_T = logprobs([*microbatch, filler_sample(renderer)])
    return logp_T[:-1] + 0 * logp_T[-1], entropy_T[:-1].clone()


def filler_sample(renderer: Renderer) -> Sample:
    """A sample with one small image and one token."""
    file = io.BytesIO()
    Image.new("RGB", (56, 56)).save(file, "PNG")
    rendered = renderer.render([Message(role="user", screenshot=Screenshot.of(file.getvalue()))])
    return Sample(
        token_ids=(*rendered.token_ids, renderer.end_of_turn_id),
        mask=b"\0" * len(rendered.token_ids) + b"\1",
        images=rendered.images,
        behaviour_logprobs=(0.0,),
        advantage=0.0,
        weight=0.0,
        replayed=False,
    )


def _materialise(module: nn.Module, device: torch.device) -> None:
    """Allocate meta tensors unit by unit: no rank ever holds the whole model."""
    for part in module.modules():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        if any(tensor.is_meta for tensor in own):
            part.to_empty(device=device, recurse=False)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(chain(model.named_parameters(), model.named_buffers()))


def fill_from_rank_0(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor] | None) -> None:
    for name, target in targets.items():
        copy_from_rank_0(target, None if sources is None else sources[name])


@torch.no_grad()
def copy_from_rank_0(target: Tensor, source: Tensor | None) -> None:
    """Fill a shard, or a replicated tensor, from the full tensor of rank 0."""
    if source is None:
        full_model = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    else:
        full_model = source.detach().to(target.device, target.dtype).contiguous()
    if isinstance(target, DTensor):
        shard = distribute_tensor(full_model, target.device_mesh, target.placements)
        target.to_local().copy_(shard.to_local())
    else:
        dist.broadcast(full_model, 0)
        target.copy_(full_model)
