"""Learner in this process: it owns π_old and the updates of a batch.

An update is one pass over its samples in micro-batches, one clipped gradient and one AdamW step. Weight decay
applies to matrices only. The learning rate has a linear warm-up, and the batch scales it. A step with an
infinite or NaN loss or gradient is skipped and counted. All parameters with `requires_grad` are trained and
saved; of the rest, only a fingerprint is saved. The learner draws no random numbers except for stochastic
rounding.
"""

from __future__ import annotations

import copy
import gc
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from arpo.algorithms.losses import (
    Tokens,
    TokenSums,
    TokenTerms,
    engine_metrics,
    kl_loss,
    policy_loss,
    teacher_loss,
)
from arpo.algorithms.microbatches import Microbatch, split_microbatches
from arpo.config import Config, OptimConfig
from arpo.engines.base import Weights
from arpo.learner.adamw import RoundingAdamW, clip_gradients
from arpo.learner.base import Batch, Metrics, TokenStats
from arpo.learner.publish import write_weights
from arpo.learner.saved_state import (
    ADAM_KEYS,
    OPTIMISER_FILE,
    WEIGHTS_FILE,
    SavedState,
    save_tensors,
    write_counters,
)
from arpo.learner.token_recorder import TokenRecorder
from arpo.models.cores import is_small, map_over_cores
from arpo.models.forward import sampled_logprobs
from arpo.models.image_loader import ImageLoader
from arpo.models.loading import DTYPES
from arpo.models.lora import adapters_disabled
from arpo.models.memory_plan import engine_pass_bytes
from arpo.prompts.rendering import Renderer
from arpo.types import Sample

_T = TypeVar("_T")
BETA1 = 0.9  # decay rate of the first moment (AdamW)

# Parameters by name, and for shards their offsets in the full tensors.
_Models = tuple[nn.Module, nn.Module | None]  # in training, base
TrainedParameters = tuple[dict[str, nn.Parameter], dict[nn.Parameter, int]]


class LocalLearner:
    """`base` is the base model to compare with: a copy, or the model itself if it has adapters.

    learner = LocalLearner(model, renderer, config)
    metrics = learner.train(batch)
    """

    def __init__(
        self,
        model: nn.Module,
        renderer: Renderer,
        config: Config,
        base: nn.Module | None = None,
        trained: TrainedParameters | None = None,
    ) -> None:
        """`trained` defaults to the parameters of the model with requires_grad."""
        assert base is not None or not config.compares_with_base, "the loss needs the base model"
        self._model: Any = model.eval()  # no dropout: π_old and π_θ depend on the weights alone
        self._models = model, base
        self._renderer = renderer
        self._config = config
        self._parameters, offsets = trained or (trained_parameters(model), {})
        self._optimiser = _adamw(self._parameters.values(), config.optim, config.run.seed, offsets)
        # In asynchronous training the engine needs the cores as well; ranks compute in step.
        alone = not (_on_gpu(model) or config.trains_a_copy or config.optim.ranks > 1)
        self._splits = alone and is_small(model)
        self._copies = threading.local()
        self._loader = ImageLoader(renderer.settings) if _on_gpu(model) else None
        self._engine_bytes = engine_pass_bytes(model) if config.trains_a_copy else 0
        self.recorder = TokenRecorder(config.store.token_stats, next(model.parameters()).device)
        self._token_stats: Sequence[Sequence[TokenStats]] = ()
        self._version = 0
        self._steps = 0
        self._skipped = 0

    def weights(self) -> Weights:
        return Weights(version=self._version, handle=self._model)

    def close(self) -> None:
        """Does nothing: all resources belong to this process."""

    def train(self, batch: Batch) -> Metrics:
        max_tokens = self._config.optim.tokens_per_microbatch
        split = [split_microbatches(update, max_tokens) for update in batch.updates]
        metrics = self._train_microbatches(split, batch.lr_scales)
        self._token_stats = self.recorder.by_sample(batch.updates, [split])
        return metrics

    def token_stats(self) -> Sequence[Sequence[TokenStats]]:
        return self._token_stats

    def logprobs(
        self, samples: Sequence[Sample], *, base: bool, temperature: float | None = None
    ) -> list[tuple[float, ...]]:
        microbatches = split_microbatches(samples, self._config.optim.tokens_per_microbatch)
        found = self._sample_logprobs(microbatches, base, temperature)
        return restore_order(samples, chain(*microbatches), found)

    def _sample_logprobs(
        self, microbatches: Sequence[Microbatch], base: bool, temperature: float | None
    ) -> list[tuple[float, ...]]:
        """log π of the tokens of each sample, in the order of the micro-batches."""

        def score(models: _Models, microbatch: Microbatch) -> list[tuple[float, ...]]:
            logprobs = self._base_logprobs if base else self._policy_logprobs
            values = iter(logprobs(models, microbatch, temperature).tolist())
            return [tuple(islice(values, sample.sampled_tokens)) for sample in microbatch]

        return list(chain(*self._each(score, microbatches)))

    def _train_microbatches(
        self, updates: Sequence[Sequence[Microbatch]], lr_scales: Sequence[float]
    ) -> Metrics:
        """Run every update with samples against one π_old; increase the version even without any."""
        self.recorder.begin()
        scales = list(lr_scales) or [1.0] * len(updates)
        live = [(update, scale) for update, scale in zip(updates, scales, strict=True) if update]
        # Before the first step π_θ equals π_old: only later updates need its log-probabilities in advance.
        old_logps_UM = [
            list(self._each(self._policy_logprobs, update)) if index else None
            for index, (update, _) in enumerate(live)
        ]
        totals = _BatchMetrics(samples=sum(len(microbatch) for update in updates for microbatch in update))
        for (update, scale), old_logps_M in zip(live, old_logps_UM, strict=True):
            self._update(update, scale, old_logps_M, totals)
        self._version += 1
        rate = self._learning_rate(scales[-1] if scales else 1.0)
        return totals.metrics() | {"lr": rate, "skipped_total": float(self._skipped)}

    def _update(
        self,
        update: Sequence[Microbatch],
        lr_scale: float,
        old_logps_M: Sequence[Tensor] | None,
        totals: _BatchMetrics,
    ) -> None:
        recorded = self.recorder.size
        found = self._accumulate(update, old_logps_M)
        if found is None:
            self.recorder.cut(recorded)
            self._optimiser.zero_grad()
            gc.collect()  # the graph of the failed pass
            torch.cuda.empty_cache()
            found = self._accumulate(update, old_logps_M, last=True)
        assert found is not None
        losses, sums = found
        norm = self._clip_gradients()
        total, sums = self._sum_over_ranks(sum(loss.item() for loss in losses), sums)
        if math.isfinite(total) and math.isfinite(norm):
            self._steps += 1
            for group in self._optimiser.param_groups:
                group["lr"] = self._learning_rate(lr_scale)
            self._optimiser.step()
            totals.add(total, norm, sums)
        else:
            self._skipped += 1
            totals.skipped += 1
        self._optimiser.zero_grad()

    def _accumulate(
        self, update: Sequence[Microbatch], old_logps_M: Sequence[Tensor] | None, last: bool = False
    ) -> tuple[list[Tensor], TokenSums] | None:
        """Add up the gradients, losses and sums of an update.

        None if the GPU's memory runs out, unless it is the `last` try: free memory may be scattered, or
        another program may have used it for a moment. Ranks do not try again: the others are in another
        collective.
        """
        losses, sums = [], TokenSums()
        try:
            for learned in self._each(self._learn, update, old_logps_M or repeat(None)):
                add_gradients(self._parameters.values(), learned.gradients)
                losses.append(learned.loss)  # .item() here would wait for the backward pass
                sums += learned.sums
                self.recorder.add(learned.tokens, learned.terms)
        except torch.OutOfMemoryError:
            if last or self._config.optim.ranks > 1:
                raise
            return None
        return losses, sums

    def _learn(self, models: _Models, microbatch: Microbatch, old_logp_T: Tensor | None) -> _Learned:
        """The loss of a micro-batch and its gradients. Without `old_logp_T`, π_old is π_θ."""
        settings = self._config.loss
        base_logp_T = self._base_logprobs(models, microbatch) if settings.kl else None
        logp_T, entropy_T = self._token_logprobs(models[0], microbatch)
        tokens = loss_tokens(
            microbatch, logp_T, entropy_T, logp_T.detach() if old_logp_T is None else old_logp_T
        )
        loss, sums, terms = policy_loss(tokens, settings, self._config.replay.ratio)
        if base_logp_T is not None:
            kl, kl_sums = kl_loss(tokens, base_logp_T)
            loss, sums = loss + settings.kl * kl, sums + kl_sums
        if settings.teacher:
            nll, nll_sums = teacher_loss(tokens)
            loss, sums = loss + settings.teacher * nll, sums + nll_sums
        if self._splits:
            gradients = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True)
        else:
            gradients = ()
            self._backward(loss)
        return _Learned(loss=loss.detach(), sums=sums, tokens=tokens, terms=terms, gradients=gradients)

    def _each(
        self, work: Callable[..., _T], microbatches: Sequence[Microbatch], *more: Iterable[Any]
    ) -> Iterator[_T]:
        """work(models, micro-batch, one of each of `more`) for each micro-batch, in order.

        On a CPU, each core works on one: on copies of the models that share all tensors.
        """
        if self._splits:
            yield from map_over_cores(lambda *one: work(self._models_of_thread(), *one), microbatches, *more)
            return
        for index, one in enumerate(zip(microbatches, *more, strict=False)):
            self._prefetch_images(microbatches[index : index + 2])
            yield work(self._models, *one)

    def _models_of_thread(self) -> _Models:
        """A forward pass changes modules for a moment, so each thread needs its own."""
        if not hasattr(self._copies, "models"):
            modules = [model for model in self._models if model is not None]
            tensors = chain(*((*module.parameters(), *module.buffers()) for module in modules))
            self._copies.models = copy.deepcopy(self._models, {id(tensor): tensor for tensor in tensors})
        models: _Models = self._copies.models
        return models

    def _prefetch_images(self, microbatches: Sequence[Microbatch]) -> None:
        """Start decoding the screenshots missing in the feature cache."""
        if self._loader is None:
            return
        cached = getattr(self._model.model.visual, "feature_cache", ())
        screenshots = (shot for microbatch in microbatches for sample in microbatch for shot in sample.images)
        self._loader.prefetch(shot for shot in screenshots if shot.sha256 not in cached)

    def _base_logprobs(
        self, models: _Models, microbatch: Microbatch, temperature: float | None = None
    ) -> Tensor:
        _, base = models
        assert base is not None
        with adapters_disabled(base):
            return self._policy_logprobs((base, None), microbatch, temperature)

    @torch.no_grad()
    def _policy_logprobs(
        self, models: _Models, microbatch: Microbatch, temperature: float | None = None
    ) -> Tensor:
        return self._token_logprobs(models[0], microbatch, temperature)[0]

    # `sharded.RankLearner` overrides the methods from here to `_clip_gradients`.

    def _token_logprobs(
        self, model: Any, microbatch: Microbatch, temperature: float | None = None
    ) -> tuple[Tensor, Tensor]:
        return sampled_logprobs(
            model,
            microbatch,
            self._renderer,
            temperature or self._config.rollout.temperature,
            loader=self._loader,
            reserved=self._engine_bytes,
        )

    def _backward(self, loss: Tensor) -> None:
        loss.backward()

    def _sum_over_ranks(self, loss: float, sums: TokenSums) -> tuple[float, TokenSums]:
        return loss, sums

    def _clip_gradients(self) -> float:
        return clip_gradients(self._parameters.values(), self._config.optim.grad_norm)

    def counters(self) -> dict[str, int]:
        return {"version": self._version, "steps": self._steps, "skipped": self._skipped}

    def _learning_rate(self, scale: float) -> float:
        """Learning rate of step `_steps`, counted from 1."""
        warmup = self._config.optim.warmup_updates
        return self._config.optim.lr * min(1.0, self._steps / max(1, warmup)) * scale

    def save(self, folder: Path) -> None:
        """Write trained weights, optimiser state, counters, and the fingerprint of frozen weights."""
        folder.mkdir(parents=True, exist_ok=True)
        optimiser_state = {
            f"{name}/{key}": self._optimiser.state[parameter][key].contiguous()
            for name, parameter in self._parameters.items()
            if parameter in self._optimiser.state
            for key in ADAM_KEYS
        }
        save_tensors(
            {name: p.detach().contiguous() for name, p in self._parameters.items()}, folder / WEIGHTS_FILE
        )
        save_tensors(optimiser_state, folder / OPTIMISER_FILE)
        write_counters(folder, self._model, **self.counters())

    def publish(self, folder: Path) -> None:
        write_weights(self._model, self._config.model, folder)

    def load(self, folder: Path) -> None:
        """Resume from a folder written by `save`. Fills the model in place, for all its holders."""
        saved = SavedState.read(folder, self._model)
        self._restore(saved)
        self._version, self._steps, self._skipped = saved.version, saved.steps, saved.skipped

    @torch.no_grad()
    def _restore(self, saved: SavedState) -> None:
        self._optimiser.state.clear()
        for name, parameter in self._parameters.items():
            parameter.copy_(saved.weights[name])
        for name in saved.stepped:
            parameter = self._parameters[name]
            step, *moments = (saved.optimiser_state[f"{name}/{key}"] for key in ADAM_KEYS)
            on_device = [step, *(moment.to(parameter.device) for moment in moments)]
            self._optimiser.state[parameter] = dict(zip(ADAM_KEYS, on_device, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learned:
    """Loss of a micro-batch without graph. `gradients` are empty if the parameters have them already."""

    loss: Tensor
    sums: TokenSums
    tokens: Tokens
    terms: TokenTerms
    gradients: Sequence[Tensor | None]


@dataclass(slots=True, kw_only=True)
class _BatchMetrics:
    """Sums over the updates of one batch. Means over tokens are taken at the end, over the whole batch."""

    samples: int
    sums: TokenSums = field(default_factory=TokenSums)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    skipped: int = 0

    def add(self, loss: float, norm: float, sums: TokenSums) -> None:
        self.losses.append(loss)
        self.norms.append(norm)
        self.sums += sums

    def metrics(self) -> dict[str, float]:
        sums, steps = self.sums, len(self.losses)
        return {
            "loss": _mean(sum(self.losses), steps),
            "grad_norm": _mean(sum(self.norms), steps),
            "clip_fraction": _mean(sums.clipped, sums.tokens),
            "capped_fraction": _mean(sums.capped, sums.tokens),
            "ratio": _mean(sums.ratio, sums.tokens),
            "kl": _mean(sums.kl, sums.tokens),
            "entropy": _mean(sums.entropy, sums.tokens),
            "base_kl": _mean(sums.base_kl, sums.fresh),
            "tokens": float(sums.tokens),
            "samples": float(self.samples),
            "updates": float(steps),
            "skipped": float(self.skipped),
            **({"teacher_loss": sums.teacher_nll / sums.teacher_tokens} if sums.teacher_tokens else {}),
            **engine_metrics(sums),
        }


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def add_gradients(parameters: Iterable[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
    """As a backward pass does. No gradients: nothing to add."""
    for parameter, gradient in zip(parameters, gradients, strict=False):
        if gradient is not None:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def restore_order(samples: Sequence[Sample], shuffled: Iterable[Sample], values: Iterable[_T]) -> list[_T]:
    """Reorder `values`, one per sample of `shuffled`, to the order of `samples`."""
    found = {id(sample): value for sample, value in zip(shuffled, values, strict=True)}
    return [found[id(sample)] for sample in samples]


def _on_gpu(model: nn.Module) -> bool:
    return next(model.parameters()).is_cuda


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0


def _adamw(
    parameters: Iterable[nn.Parameter], optim: OptimConfig, seed: int, offsets: Mapping[nn.Parameter, int]
) -> torch.optim.Optimizer:
    parameters = list(parameters)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (BETA1, optim.beta2)
    if optim.moments == "float32" and all(p.dtype == torch.float32 for p in parameters):
        return torch.optim.AdamW(groups, lr=optim.lr, betas=betas)
    return RoundingAdamW(
        groups, lr=optim.lr, betas=betas, moments=DTYPES[optim.moments], seed=seed, offsets=offsets
    )


def loss_tokens(microbatch: Microbatch, logp_T: Tensor, entropy_T: Tensor, old_logp_T: Tensor) -> Tokens:
    lengths = [sample.sampled_tokens for sample in microbatch]
    counts = torch.tensor(lengths, dtype=torch.int64, device=logp_T.device)

    def repeat(values: Sequence[float]) -> Tensor:
        """Repeat the value of each sample for each of its sampled tokens."""
        return logp_T.new_tensor(values).repeat_interleave(counts)

    behaviour = [
        logprob
        for sample, length in zip(microbatch, lengths, strict=True)
        for logprob in sample.behaviour_logprobs or (math.nan,) * length
    ]
    stale = [
        age > 0
        for sample, length in zip(microbatch, lengths, strict=True)
        for age in sample.staleness or (0,) * length
    ]
    return Tokens(
        logp_T=logp_T,
        entropy_T=entropy_T,
        old_logp_T=old_logp_T,
        behaviour_logp_T=logp_T.new_tensor(behaviour),
        advantage_T=repeat([sample.advantage for sample in microbatch]),
        weight_T=repeat([sample.weight for sample in microbatch]),
        kl_weight_T=repeat([sample.kl_weight for sample in microbatch]),
        teacher_weight_T=repeat([sample.teacher_weight for sample in microbatch]),
        replayed_T=repeat([sample.replayed for sample in microbatch]).bool(),
        stale_T=logp_T.new_tensor(stale).bool(),
    )
