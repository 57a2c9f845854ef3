"""Learner on several ranks: weights, gradients, moments and samples are sharded among them (FSDP2).

Every rank has a `RankLearner`: a `LocalLearner` whose model keeps a shard of each tensor and gathers the rest
layer by layer. Samples are balanced by tokens; a rank without samples runs a filler of weight zero, because
every rank must take part in gathering. Losses include their normalisation and are summed, so results equal
those of one process up to the order of summation. Rank 0 also has a full model for sampling. Its trained
weights are freed while the ranks learn, and gathered from them afterwards. If other processes sample, it only
supplies the initial values, and nothing is gathered. A frozen vision tower is copied instead of sharded: it
runs only on a cache miss, at different times on each rank.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from arpo.algorithms.losses import TokenSums
from arpo.algorithms.microbatches import Microbatch, assign_to_ranks, balance_sizes
from arpo.config import Config
from arpo.engines.base import Weights
from arpo.learner.base import Batch, Metrics, TokenStats
from arpo.learner.local import LocalLearner, TrainedParameters, restore_order, trained_parameters
from arpo.learner.publish import write_shards
from arpo.learner.rank_commands import (
    Command,
    LoadCommand,
    LogprobsCommand,
    PublishCommand,
    SaveCommand,
    TrainCommand,
)
from arpo.learner.rank_processes import WITH_PARENT, RankLauncher
from arpo.learner.ranks import RankGroup, rank_device, serve_rank
from arpo.learner.saved_state import (
    ADAM_KEYS,
    OPTIMISER_FILE,
    WEIGHTS_FILE,
    SavedState,
    rank_file,
    save_tensors,
    write_counters,
)
from arpo.learner.sharded_model import copy_from_rank_0, fill_from_rank_0, sharded_model
from arpo.models.cores import use_cores
from arpo.models.families import VisionLanguageModel
from arpo.models.loading import DTYPES, load_model, load_renderer
from arpo.models.trainable import load_trained, set_trainable
from arpo.processes.child import end_with_parent
from arpo.prompts.rendering import Renderer
from arpo.types import Sample

STEP, *MOMENTS = ADAM_KEYS


class ShardedLearner:
    """The learner of the run, on rank 0. Every rank starts with the values of `model`.

    with closing(ShardedLearner(model, renderer, config)) as learner:  # starts optim.ranks - 1 processes
        metrics = learner.train(batch)
    """

    def __init__(
        self,
        model: VisionLanguageModel,
        renderer: Renderer,
        config: Config,
        launcher: RankLauncher | None = None,
    ) -> None:
        self._model, self._renderer, self._launcher = model.eval(), renderer, launcher
        self._sampling_weights = trained_parameters(model) if config.samples_in_process else {}
        self._config = config
        self._token_stats: Sequence[Sequence[TokenStats]] = ()
        self._open(model)

    def _open(self, model: VisionLanguageModel) -> None:
        """Start the ranks with the values of `model`."""
        self._ranks = RankGroup(self._config, self._launcher)
        try:
            with self._ranks.collective():
                self._learner = RankLearner(self._renderer, self._config, 0, full_model=model)
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Replace all other ranks by new ones, with the initial weights of the run."""
        self._ranks.close()
        self.__dict__.pop("_learner", None)  # frees its memory before the next one
        settings, seed = self._config.model, self._config.run.seed
        initial: Any = load_model(replace(settings, device=self._model.device.type), seed)
        set_trainable(initial, settings, seed)
        load_trained(self._model, initial)
        if hasattr(self._model.model.visual, "feature_cache"):
            initial.model.visual.feature_cache = self._model.model.visual.feature_cache
        self._open(initial)

    def close(self) -> None:
        """Stop the other ranks. Without this call they exit with this object or process."""
        self._ranks.close()

    def weights(self) -> Weights:
        return Weights(version=self._learner.weights().version, handle=self._model)

    def train(self, batch: Batch) -> Metrics:
        optim = self._config.optim
        assigned = [
            assign_to_ranks(update, optim.ranks, optim.tokens_per_microbatch) for update in batch.updates
        ]
        commands = [
            TrainCommand(updates=[update[rank] for update in assigned], lr_scales=batch.lr_scales)
            for rank in range(optim.ranks)
        ]
        with self._ranks.collective():
            self._ranks.send(commands[1:])
            with _memory_freed(self._sampling_weights.values()):
                metrics = self._learner.train_on(commands[0])
            self._learner.gather_into(self._sampling_weights)
        shares = [command.updates for command in commands]
        self._token_stats = self._learner.recorder.by_sample(batch.updates, shares)
        return {**metrics, "samples": float(sum(map(len, batch.updates)))}

    def token_stats(self) -> Sequence[Sequence[TokenStats]]:
        return self._token_stats

    def logprobs(
        self, samples: Sequence[Sample], *, base: bool, temperature: float | None = None
    ) -> list[tuple[float, ...]]:
        optim = self._config.optim
        shares = assign_to_ranks(samples, optim.ranks, optim.tokens_per_microbatch)
        sizes = [sum(sample.sampled_tokens for sample in chain(*share)) for share in shares]
        commands = [
            LogprobsCommand(
                updates=[share],
                base=base,
                temperature=temperature,
                first=sum(sizes[:rank]),
                count=sum(sizes),
            )
            for rank, share in enumerate(shares)
        ]
        with self._ranks.collective():
            self._ranks.send(commands[1:])
            found = iter(self._learner.gather_logprobs(commands[0]))
        shuffled = list(chain(*chain(*shares)))
        by_sample = [tuple(islice(found, sample.sampled_tokens)) for sample in shuffled]
        return restore_order(samples, shuffled, by_sample)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with self._ranks.collective(), marked(folder) as marker:
            self._ranks.send_all(SaveCommand(folder=str(folder.resolve()), marker=marker))
            writers = self._learner.save_shards(folder, marker)
        write_counters(folder, self._model, ranks=writers, **self._learner.counters())

    def publish(self, folder: Path) -> None:
        with self._ranks.collective(), marked(folder) as marker:
            self._ranks.send_all(PublishCommand(folder=str(folder.resolve()), marker=marker))
            self._learner.publish_shards(folder, marker)

    def load(self, folder: Path) -> None:
        """Resume from a folder of any number of ranks. Only rank 0 reads it."""
        saved = SavedState.read(folder, self._model)
        parameters = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, weight in saved.weights.items():
                parameters[name].copy_(weight)
        command = LoadCommand(
            version=saved.version,
            steps=saved.steps,
            skipped=saved.skipped,
            parameter_steps={name: float(saved.optimiser_state[f"{name}/{STEP}"]) for name in saved.stepped},
        )
        with self._ranks.collective():
            self._ranks.send_all(command)
            self._learner.restore(command, self._model, saved)


class RankLearner(LocalLearner):
    """The part of one rank. Every rank calls each method, in the same order."""

    def __init__(
        self, renderer: Renderer, config: Config, rank: int, full_model: VisionLanguageModel | None
    ) -> None:
        """Rank 0 passes the `full_model`; other ranks pass None and receive their shards of its values."""
        self._rank, self._device = rank, rank_device(rank, config)
        model = sharded_model(config, self._device, full_model, full_model)
        base = model
        if config.compares_with_base and config.model.train != "lora":
            base = sharded_model(config, self._device, full_model, model).requires_grad_(False)
        self._shards = {name: _as_dtensor(p) for name, p in trained_parameters(model).items()}
        super().__init__(model, renderer, config, base, self._local_shards())

    def train_on(self, command: TrainCommand) -> Metrics:
        metrics = self._train_microbatches(command.updates, command.lr_scales)
        self.recorder.gather()
        return metrics

    def gather_logprobs(self, command: LogprobsCommand) -> list[float]:
        """Log-probabilities of the sampled tokens of all ranks, in rank order."""
        found = torch.zeros(command.count, dtype=torch.float64, device=self._device)
        own = [*chain(*self._sample_logprobs(command.updates[0], command.base, command.temperature))]
        found[command.first : command.first + len(own)] = found.new_tensor(own)
        dist.all_reduce(found)
        return found.tolist()

    @torch.no_grad()
    def gather_into(self, sampling_weights: Mapping[str, nn.Parameter]) -> None:
        """Copy the trained parameters into rank 0's model for sampling, one at a time, if there is one."""
        for name, shard in self._shards.items() if self._config.samples_in_process else ():
            gathered = shard.full_tensor()
            if name in sampling_weights:
                sampling_weights[name].copy_(gathered)

    @torch.no_grad()
    def save_shards(self, folder: Path, marker: str) -> int:
        """Write the full tensors of this rank's part of the parameters; return when all ranks are done.

        Returns the number of ranks that write files: those that see the marker.
        """
        names, writers = list(self._shards), find_writers(folder / marker, self._device)
        shares = balance_sizes([self._shards[name].numel() for name in names], len(writers))
        mine = {names[index] for index in dict(zip(writers, shares, strict=True)).get(self._rank, [])}
        weights: dict[str, Tensor] = {}
        optimiser_state: dict[str, Tensor] = {}
        for name, shard in self._shards.items():
            state = self._optimiser.state.get(self._parameters[name], {})
            tensors = {name: shard}
            tensors |= {
                f"{name}/{moment}": _dtensor_like(shard, state[moment]) for moment in MOMENTS if state
            }
            gathered = {key: tensor.full_tensor() for key, tensor in tensors.items()}
            if name in mine:
                weights[name] = gathered.pop(name).cpu()
                optimiser_state |= {key: tensor.cpu() for key, tensor in gathered.items()}
                optimiser_state |= {f"{name}/{STEP}": state[STEP]} if state else {}
        if self._rank in writers:
            number = writers.index(self._rank)
            save_tensors(weights, folder / rank_file(WEIGHTS_FILE, number))
            save_tensors(optimiser_state, folder / rank_file(OPTIMISER_FILE, number))
        dist.barrier()
        return len(writers)

    def publish_shards(self, folder: Path, marker: str) -> None:
        writers = find_writers(folder / marker, self._device)
        write_shards(self._model, self._config.model, folder, self._rank, writers)

    def restore(
        self, command: LoadCommand, full_model: VisionLanguageModel | None, saved: SavedState | None
    ) -> None:
        """Copy the weights from rank 0's full model and the moments from its saved state."""
        fill_from_rank_0(self._shards, None if full_model is None else dict(full_model.named_parameters()))
        self._optimiser.state.clear()
        dtype = DTYPES[self._config.optim.moments]
        for name, step in command.parameter_steps.items():
            state: dict[str, Tensor] = {STEP: torch.tensor(step)}
            for moment in MOMENTS:
                state[moment] = torch.empty_like(self._parameters[name], dtype=dtype)
                shard = _dtensor_like(self._shards[name], state[moment])
                copy_from_rank_0(shard, None if saved is None else saved.optimiser_state[f"{name}/{moment}"])
            self._optimiser.state[self._parameters[name]] = state
        self._version, self._steps, self._skipped = command.version, command.steps, command.skipped

    def _local_shards(self) -> TrainedParameters:
        """The local shard of each tensor, as a parameter with shared memory."""
        with torch.no_grad():
            own = {name: nn.Parameter(shard.to_local()) for name, shard in self._shards.items()}
        return own, {own[name]: _shard_offset(shard, self._rank) for name, shard in self._shards.items()}

    def _token_logprobs(
        self, model: Any, microbatch: Microbatch, temperature: float | None = None
    ) -> tuple[Tensor, Tensor]:
        temperature = temperature or self._config.rollout.temperature
        logp_T, entropy_T = model(microbatch, self._renderer, temperature, self._loader)
        return logp_T, entropy_T

    def _backward(self, loss: Tensor) -> None:
        """Scale the loss: FSDP averages gradients over ranks, and we need their sum."""
        (loss * dist.get_world_size()).backward()

    def _sum_over_ranks(self, loss: float, sums: TokenSums) -> tuple[float, TokenSums]:
        own = asdict(sums)
        numbers = torch.tensor([loss, *own.values()], dtype=torch.float64, device=self._device)
        dist.all_reduce(numbers)
        loss, *all_ranks = numbers.tolist()
        added = zip(own.items(), all_ranks, strict=True)
        return loss, TokenSums(**{name: type(value)(total) for (name, value), total in added})

    def _clip_gradients(self) -> float:
        """Clip by the norm over all ranks. Moves the gradients from the shards to the local parameters."""
        for name, shard in self._shards.items():
            grad, shard.grad = shard.grad, None
            self._parameters[name].grad = None if grad is None else _as_dtensor(grad).to_local()
        stepped = [p for p in self._parameters.values() if p.grad is not None]
        norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float32) for p in stepped]
        square = torch.stack(norms).double().square().sum()
        dist.all_reduce(square)
        norm = square.sqrt().float()
        nn.utils.clip_grads_with_norm_(stepped, self._config.optim.grad_norm, norm)
        return norm.item()


@contextmanager
def marked(folder: Path) -> Iterator[str]:
    """Name of a file that rank 0 keeps in the folder during the block. Ranks that see it see the folder."""
    marker = folder / f"shared-{secrets.token_hex(8)}"
    marker.touch()
    try:
        yield marker.name
    finally:
        marker.unlink(missing_ok=True)


def find_writers(marker: Path, device: torch.device) -> list[int]:
    """Numbers of the ranks that see this file. Every rank calls it."""
    seen = torch.zeros(dist.get_world_size(), dtype=torch.int64, device=device)
    seen[dist.get_rank()] = int(marker.is_file())
    dist.all_reduce(seen)
    return [rank for rank, sees in enumerate(seen.tolist()) if sees]


@contextmanager
def _memory_freed(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Free the memory of these parameters. Afterwards they have memory again, and any values."""
    freed = [(parameter, parameter.shape) for parameter in parameters]
    for parameter, _ in freed:
        parameter.data = parameter.new_empty(0)
    try:
        yield
    finally:
        for parameter, shape in freed:
            parameter.data = parameter.new_empty(shape)


def _as_dtensor(tensor: Tensor) -> DTensor:
    assert isinstance(tensor, DTensor)
    return tensor


def _dtensor_like(shard: DTensor, part: Tensor) -> DTensor:
    """This rank's `part` of a tensor with the sharding of `shard`."""
    return DTensor.from_local(
        part, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
    )


def _shard_offset(shard: DTensor, rank: int) -> int:
    """Index of the first element of this rank. Ranks have equal numbers of rows; the last may have fewer."""
    rows = len(shard)
    first = min(rows, rank * -(-rows // shard.device_mesh.size()))
    return first * (shard.numel() // rows)


def _run_commands(rank: int, config: Config, commands: Iterator[Command]) -> None:
    """Main loop of every rank but 0."""
    threads = config.run.threads or os.cpu_count() or 1
    use_cores(max(1, threads // config.optim.ranks))
    learner = RankLearner(load_renderer(config.model), config, rank, full_model=None)
    for command in commands:
        match command:
            case TrainCommand():
                learner.train_on(command)
                learner.gather_into({})
            case LogprobsCommand():
                learner.gather_logprobs(command)
            case SaveCommand():
                learner.save_shards(Path(command.folder), command.marker)
            case PublishCommand():
                learner.publish_shards(Path(command.folder), command.marker)
            case LoadCommand():
                learner.restore(command, None, None)


def main(rank: int, store: str) -> NoReturn:
    """Be a rank. The recipe comes from rank 0."""
    serve_rank(rank, store, partial(_run_commands, rank))


if __name__ == "__main__":
    if sys.argv[3:] == [WITH_PARENT]:
        end_with_parent()
    main(int(sys.argv[1]), sys.argv[2])
