"""The learner on several ranks: weights, gradients and moments are divided among them (FSDP2), and samples.

Every rank has a `Shard`: the learner of one process, with a model of which it keeps a part of each tensor and
gathers the rest, layer by layer, when it is needed. Samples are balanced by tokens; a rank with none left
runs a filler of weight zero, so that no gathering lacks a rank. Losses hold their normalisation and are added
up, so all is as in one process, but for the order of summation. Rank 0 has besides a whole model, for
sampling, which is filled again after each batch. A frozen vision tower is not divided but copied: what it
made of a screenshot is remembered, so that it runs at other times on each rank.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from arpo.algorithms.losses import TokenSums
from arpo.algorithms.microbatches import Microbatch, balance, deal
from arpo.config import Config
from arpo.engines.base import Weights
from arpo.learner.base import Batch, Metrics
from arpo.learner.local import LocalLearner, in_order
from arpo.learner.ranks import Judge, Load, Order, Ranks, Save, Train, device_of, serve
from arpo.learner.saved_state import ADAM_SLOTS, OPTIMISER, WEIGHTS, Saved, part_of, write_counters
from arpo.models.families import VisionLanguageModel
from arpo.models.forward import sampled_logprobs
from arpo.models.image_loader import Pictures
from arpo.models.loading import DTYPES, hollow_model, load_renderer
from arpo.models.trainable import choose_trained
from arpo.prompts.rendering import Renderer
from arpo.recipe import load_config
from arpo.types import Message, Sample, Screenshot

STEP, *MOMENTS = ADAM_SLOTS


class ShardedLearner:
    """The learner as the run sees it, on rank 0. Every rank begins with the values of the whole `model`."""

    def __init__(self, model: VisionLanguageModel, renderer: Renderer, config: Config) -> None:
        self._model = model.eval()
        self._config = config
        self._ranks = Ranks(config, __name__)
        try:
            with self._ranks.together():
                self._shard = Shard(renderer, config, 0, whole=model)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the other ranks; without this call they end with this object or process."""
        self._ranks.close()

    def weights(self) -> Weights:
        return Weights(version=self._shard.weights().version, handle=self._model)

    async def train(self, batch: Batch) -> Metrics:
        optim = self._config.optim
        dealt = [deal(update, optim.ranks, optim.tokens_per_microbatch) for update in batch.updates if update]
        orders = [Train(updates=[update[rank] for update in dealt]) for rank in range(optim.ranks)]
        with self._ranks.together():
            self._ranks.tell(orders[1:])
            metrics = self._shard.train_share(orders[0])
            self._shard.gather_into(self._model)
        return {**metrics, "samples": float(sum(map(len, batch.updates)))}

    async def logprobs(self, samples: Sequence[Sample], *, base: bool) -> list[float]:
        optim = self._config.optim
        shares = deal(samples, optim.ranks, optim.tokens_per_microbatch)
        sizes = [sum(map(len, share)) for share in shares]
        orders = [
            Judge(updates=[share], base=base, first=sum(sizes[:rank]), count=len(samples))
            for rank, share in enumerate(shares)
        ]
        with self._ranks.together():
            self._ranks.tell(orders[1:])
            found = self._shard.judge_share(orders[0])
        return in_order(samples, chain(*chain(*shares)), found)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        order = Save(folder=str(folder.resolve()))
        with self._ranks.together():
            self._ranks.tell_all(order)
            self._shard.save(folder)
        write_counters(folder, self._model, ranks=self._config.optim.ranks, **self._shard.counters())

    def load(self, folder: Path) -> None:
        """Go on from what any number of ranks saved; rank 0 alone reads it."""
        saved = Saved.read(folder, self._model)
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, weight in saved.weights.items():
                parameters[name].copy_(weight)
        order = Load(
            version=saved.version,
            steps=saved.steps,
            skipped=saved.skipped,
            taken={name: float(saved.slots[f"{name}/{STEP}"]) for name in saved.stepped},
        )
        with self._ranks.together():
            self._ranks.tell_all(order)
            self._shard.take_over(order, self._model, saved)


class Shard(LocalLearner):
    """One rank's part in all that the ranks do. Each method is called on every rank, in the same order."""

    def __init__(
        self, renderer: Renderer, config: Config, rank: int, whole: VisionLanguageModel | None
    ) -> None:
        """Rank 0 gives the `whole` model, and all others take their parts of its values."""
        self._rank, self._device = rank, device_of(rank, config)
        model = divided_model(config, self._device, whole, whole)
        base = model
        if config.compares_with_base and config.model.train != "lora":
            base = divided_model(config, self._device, whole, model).requires_grad_(False)
        super().__init__(model, renderer, config, base)

    def train_share(self, order: Train) -> Metrics:
        return self._train_packed(order.updates)

    def judge_share(self, order: Judge) -> list[float]:
        """What all ranks found, one after the other."""
        found = torch.zeros(order.count, dtype=torch.float64, device=self._device)
        own = self._sums(order.updates[0], order.base)
        found[order.first : order.first + len(own)] = found.new_tensor(own)
        dist.all_reduce(found)
        return found.tolist()

    @torch.no_grad()
    def gather_into(self, whole: VisionLanguageModel | None) -> None:
        """Fill rank 0's whole model with what was trained, a parameter at a time."""
        parameters = {} if whole is None else dict(whole.named_parameters())
        for name, shard in self._shards.items():
            gathered = shard.full_tensor()
            if whole is not None:
                parameters[name].copy_(gathered)

    @torch.no_grad()
    def save(self, folder: Path) -> None:
        """Each rank writes whole tensors, of its share of the parameters; it returns when all have."""
        names = list(self._shards)
        shares = balance([self._shards[name].numel() for name in names], dist.get_world_size())
        mine = {names[place] for place in shares[self._rank]}
        weights: dict[str, Tensor] = {}
        slots: dict[str, Tensor] = {}
        for name, shard in self._shards.items():
            state = self._optimiser.state.get(self._parameters[name], {})
            tensors = {name: shard}
            tensors |= {f"{name}/{moment}": _like(shard, state[moment]) for moment in MOMENTS if state}
            gathered = {key: tensor.full_tensor() for key, tensor in tensors.items()}
            if name in mine:
                weights[name] = gathered.pop(name).cpu()
                slots |= {key: tensor.cpu() for key, tensor in gathered.items()}
                slots |= {f"{name}/{STEP}": state[STEP]} if state else {}
        save_file(weights, folder / part_of(WEIGHTS, self._rank))
        save_file(slots, folder / part_of(OPTIMISER, self._rank))
        dist.barrier()

    def take_over(self, order: Load, whole: VisionLanguageModel | None, saved: Saved | None) -> None:
        """The weights are in rank 0's whole model, the moments in what it read."""
        _fill(self._shards, None if whole is None else dict(whole.named_parameters()))
        self._optimiser.state.clear()
        kind = DTYPES[self._config.optim.moments]
        for name, step in order.taken.items():
            state: dict[str, Tensor] = {STEP: torch.tensor(step)}
            for moment in MOMENTS:
                state[moment] = torch.empty_like(self._parameters[name], dtype=kind)
                shard = _like(self._shards[name], state[moment])
                _take(shard, None if saved is None else saved.slots[f"{name}/{moment}"])
            self._optimiser.state[self._parameters[name]] = state
        self._version, self._steps, self._skipped = order.version, order.steps, order.skipped

    def _trained(self, model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[nn.Parameter, int]]:
        """The local part of each tensor, as a parameter of its own that shares its memory."""
        self._shards = {name: _as_shard(p) for name, p in model.named_parameters() if p.requires_grad}
        with torch.no_grad():
            own = {name: nn.Parameter(shard.to_local()) for name, shard in self._shards.items()}
        return own, {own[name]: _start(shard, self._rank) for name, shard in self._shards.items()}

    def _sampled(self, model: Any, microbatch: Microbatch) -> tuple[Tensor, Tensor]:
        temperature = self._config.rollout.temperature
        logp_T, entropy_T = model(microbatch, self._renderer, temperature, self._pictures)
        return logp_T, entropy_T

    def _backward(self, loss: Tensor) -> None:
        """Gradients of the ranks are to be added up; FSDP takes their mean."""
        (loss * dist.get_world_size()).backward()

    def _added_up(self, loss: float, sums: TokenSums) -> tuple[float, TokenSums]:
        own = asdict(sums)
        numbers = torch.tensor([loss, *own.values()], dtype=torch.float64, device=self._device)
        dist.all_reduce(numbers)
        loss, *all_ranks = numbers.tolist()
        added = zip(own.items(), all_ranks, strict=True)
        return loss, TokenSums(**{name: type(value)(total) for (name, value), total in added})

    def _clip(self) -> float:
        """By the norm over all ranks' parts. The gradients are handed from the shards to our own tensors."""
        for name, shard in self._shards.items():
            grad, shard.grad = shard.grad, None
            self._parameters[name].grad = None if grad is None else _as_shard(grad).to_local()
        stepped = [p for p in self._parameters.values() if p.grad is not None]
        norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float32) for p in stepped]
        square = torch.stack(norms).double().square().sum()
        dist.all_reduce(square)
        norm = square.sqrt().float()
        nn.utils.clip_grads_with_norm_(stepped, self._config.optim.grad_norm, norm)
        return norm.item()


def divided_model(
    config: Config, device: torch.device, whole: VisionLanguageModel | None, seer: VisionLanguageModel | None
) -> Any:
    """The recipe's model with this rank's part of each tensor, its values taken from rank 0's `whole` one.

    Called on samples it gives what `sampled_logprobs` does: FSDP gathers around a module's own call alone.
    What a frozen tower sees it shares with the `seer`, whose tower is the same.
    """
    model: Any = hollow_model(config.model)
    choose_trained(model, config.model, config.run.seed)
    visual, layers = model.model.visual, model.model.language_model.layers
    frozen_tower = hasattr(visual, "feature_cache")
    if frozen_tower and seer is not None:
        visual.feature_cache = seer.model.visual.feature_cache
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
    model.tie_weights()
    shard(model, ignored_params={p for p in visual.parameters() if frozen_tower and not p.requires_grad})
    _fill(_tensors(model), None if whole is None else _tensors(whole))
    return model


def _forward(
    model: VisionLanguageModel,
    microbatch: Microbatch,
    renderer: Renderer,
    temperature: float,
    pictures: Pictures | None,
) -> tuple[Tensor, Tensor]:
    """A filler stands in where no sample shows a picture: both towers run on every rank or on none."""
    logprobs = partial(sampled_logprobs, model, renderer=renderer, temperature=temperature, pictures=pictures)
    if any(sample.images for sample in microbatch):
        logp_T, entropy_T = logprobs(microbatch)
        return logp_T.clone(), entropy_T  # FSDP wants no view
    logp_T, entropy_T = logprobs([*microbatch, filler(renderer)])
    return logp_T[:-1] + 0 * logp_T[-1], entropy_T[:-1].clone()


def filler(renderer: Renderer) -> Sample:
    """One small picture and one token."""
    file = io.BytesIO()
    Image.new("RGB", (56, 56)).save(file, "PNG")
    rendered = renderer.render([Message(role="user", screenshot=Screenshot.of(file.getvalue()))])
    return Sample(
        token_ids=(*rendered.token_ids, renderer.end_of_turn_id),
        mask=(False,) * len(rendered.token_ids) + (True,),
        images=rendered.images,
        behaviour_logprobs=(0.0,),
        advantage=0.0,
        weight=0.0,
        replayed=False,
    )


def _materialise(module: nn.Module, device: torch.device) -> None:
    """Memory for what has none yet: unit by unit, so that no rank ever needs it for the whole model."""
    for part in module.modules():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        if any(tensor.is_meta for tensor in own):
            part.to_empty(device=device, recurse=False)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict(chain(model.named_parameters(), model.named_buffers()))


def _fill(targets: Mapping[str, Tensor], sources: Mapping[str, Tensor] | None) -> None:
    for name, target in targets.items():
        _take(target, None if sources is None else sources[name])


@torch.no_grad()
def _take(target: Tensor, source: Tensor | None) -> None:
    """Fill a shard, or the same whole tensor on each rank, from the whole tensor that rank 0 has."""
    if source is None:
        whole = torch.empty(target.shape, dtype=target.dtype, device=target.device)
    else:
        whole = source.detach().to(target.device, target.dtype).contiguous()
    if isinstance(target, DTensor):
        shard = distribute_tensor(whole, target.device_mesh, target.placements)
        target.to_local().copy_(shard.to_local())
    else:
        dist.broadcast(whole, 0)
        target.copy_(whole)


def _as_shard(tensor: Tensor) -> DTensor:
    assert isinstance(tensor, DTensor)
    return tensor


def _like(shard: DTensor, part: Tensor) -> DTensor:
    """This rank's part of a tensor that is divided as `shard` is."""
    return DTensor.from_local(
        part, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
    )


def _start(shard: DTensor, rank: int) -> int:
    """Where among all elements this rank's begin: each rank has as many rows, the last ones perhaps fewer."""
    rows = len(shard)
    first = min(rows, rank * -(-rows // shard.device_mesh.size()))
    return first * (shard.numel() // rows)


def _work(config: Config, rank: int, orders: Iterator[Order]) -> None:
    """What each rank but 0 does."""
    threads = config.run.threads or os.cpu_count() or 1
    torch.set_num_threads(max(1, threads // config.optim.ranks))
    shard = Shard(load_renderer(config.model), config, rank, whole=None)
    for order in orders:
        match order:
            case Train():
                shard.train_share(order)
                shard.gather_into(None)
            case Judge():
                shard.judge_share(order)
            case Save():
                shard.save(Path(order.folder))
            case Load():
                shard.take_over(order, None, None)


if __name__ == "__main__":
    recipe, rank, port = sys.argv[1:]
    config = load_config(Path(recipe))
    serve(config, int(rank), int(port), partial(_work, config, int(rank)))
