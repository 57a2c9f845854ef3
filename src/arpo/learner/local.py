"""The learner in this process: it owns π_old and the updates of a batch.

An update is one pass over its samples in micro-batches, one clipped gradient, one AdamW step (decay on
matrices alone: norms and biases are left free), after a linear warm-up at a constant rate. A step whose loss
or gradient is not finite is skipped and counted. What is trained is what requires a gradient: the rest is not
saved, only recognised. It knows no tasks and draws no random number, unless bfloat16 is rounded by chance.
`train` does not give way to the event loop: at the end of a batch nobody else has work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from arpo.algorithms.losses import Tokens, TokenSums, kl_loss, policy_loss
from arpo.algorithms.microbatches import Microbatch, pack
from arpo.config import Config, OptimConfig
from arpo.engines.base import Weights
from arpo.learner.adamw import RoundingAdamW, clip_gradients
from arpo.learner.base import Batch, Metrics
from arpo.learner.saved_state import ADAM_SLOTS, OPTIMISER, WEIGHTS, Saved, write_counters
from arpo.models.forward import sampled_logprobs
from arpo.models.image_loader import Pictures
from arpo.models.loading import DTYPES
from arpo.models.lora import adapters_off
from arpo.prompts.rendering import Renderer
from arpo.types import Sample


class LocalLearner:
    """`base` is what training began with, to compare with: a copy, or the model itself less its adapters."""

    def __init__(
        self, model: nn.Module, renderer: Renderer, config: Config, base: nn.Module | None = None
    ) -> None:
        assert base is not None or not config.compares_with_base, "the loss needs the base model"
        self._model = model.eval()  # no dropout: π_old and π_θ are functions of the weights alone
        self._base = base
        self._renderer = renderer
        self._config = config
        self._parameters, starts = self._trained(model)
        self._optimiser = _adamw(self._parameters.values(), config.optim, config.run.seed, starts)
        self._pictures = Pictures(renderer.settings) if _on_gpu(model) else None
        self._version = 0
        self._steps = 0
        self._skipped = 0

    def weights(self) -> Weights:
        return Weights(version=self._version, handle=self._model)

    def close(self) -> None:
        """Nothing here outlives the process."""

    async def train(self, batch: Batch) -> Metrics:
        max_tokens = self._config.optim.tokens_per_microbatch
        return self._train_packed([pack(update, max_tokens) for update in batch.updates if update])

    async def logprobs(self, samples: Sequence[Sample], *, base: bool) -> list[float]:
        microbatches = pack(samples, self._config.optim.tokens_per_microbatch)
        return in_order(samples, chain(*microbatches), self._sums(microbatches, base))

    def _sums(self, microbatches: Sequence[Microbatch], base: bool) -> list[float]:
        """log π of each sample, one micro-batch after the other."""
        sums: list[float] = []
        for index, microbatch in enumerate(microbatches):
            self._look_ahead(microbatches[index : index + 2])
            logp_T = self._base_logprobs(microbatch) if base else self._logprobs(self._model, microbatch)
            parts = logp_T.double().split([len(sample.behaviour_logprobs) for sample in microbatch])
            sums += [part.sum().item() for part in parts]
        return sums

    def _train_packed(self, updates: Sequence[Sequence[Microbatch]]) -> Metrics:
        """Every update of the batch against one π_old, then one version more, even if no sample was left."""
        # Until the first step π_θ is π_old: only later updates need its log-probabilities from beforehand.
        old_logps_UM = [
            [self._logprobs(self._model, microbatch) for microbatch in update] if index else None
            for index, update in enumerate(updates)
        ]
        tally = _Tally(samples=sum(len(microbatch) for update in updates for microbatch in update))
        for update, old_logps_M in zip(updates, old_logps_UM, strict=True):
            self._update(update, old_logps_M, tally)
        self._version += 1
        return tally.metrics() | {"lr": self._rate(), "skipped_total": float(self._skipped)}

    def _update(
        self, update: Sequence[Microbatch], old_logps_M: Sequence[Tensor] | None, tally: _Tally
    ) -> None:
        losses, sums = [], TokenSums()
        for index, microbatch in enumerate(update):
            self._look_ahead(update[index : index + 2])
            loss, these = self._loss(microbatch, None if old_logps_M is None else old_logps_M[index])
            self._backward(loss)
            losses.append(loss.detach())  # reading it would wait for the backward pass
            sums += these
        norm = self._clip()
        total, sums = self._added_up(sum(loss.item() for loss in losses), sums)
        if math.isfinite(total) and math.isfinite(norm):
            self._steps += 1
            for group in self._optimiser.param_groups:
                group["lr"] = self._rate()
            self._optimiser.step()
            tally.add(total, norm, sums)
        else:
            self._skipped += 1
            tally.skipped += 1
        self._optimiser.zero_grad()

    def _loss(self, microbatch: Microbatch, old_logp_T: Tensor | None) -> tuple[Tensor, TokenSums]:
        base_logp_T = self._base_logprobs(microbatch) if self._config.loss.kl else None
        logp_T, entropy_T = self._sampled(self._model, microbatch)
        tokens = _tokens(microbatch, logp_T, entropy_T, logp_T.detach() if old_logp_T is None else old_logp_T)
        loss, sums = policy_loss(tokens, self._config.loss, self._config.replay.ratio)
        if base_logp_T is None:
            return loss, sums
        kl, kl_sums = kl_loss(tokens, base_logp_T)
        return loss + self._config.loss.kl * kl, sums + kl_sums

    def _look_ahead(self, microbatches: Sequence[Microbatch]) -> None:
        """Have the pictures of these unpacked, but for those that a frozen tower remembers."""
        if self._pictures is None:
            return
        model: Any = self._model
        remembered = getattr(model.model.visual, "feature_cache", ())
        shown = (shot for microbatch in microbatches for sample in microbatch for shot in sample.images)
        self._pictures.expect(shot for shot in shown if shot.sha256 not in remembered)

    def _base_logprobs(self, microbatch: Microbatch) -> Tensor:
        assert self._base is not None
        with adapters_off(self._base):
            return self._logprobs(self._base, microbatch)

    @torch.no_grad()
    def _logprobs(self, model: Any, microbatch: Microbatch) -> Tensor:
        return self._sampled(model, microbatch)[0]

    # What one of several ranks does in another way (`sharded`), from here to `_clip`.

    def _trained(self, model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[nn.Parameter, int]]:
        """What the optimiser steps here, by name; and where in its parameter each begins that is a part."""
        return {name: p for name, p in model.named_parameters() if p.requires_grad}, {}

    def _sampled(self, model: Any, microbatch: Microbatch) -> tuple[Tensor, Tensor]:
        temperature = self._config.rollout.temperature
        return sampled_logprobs(model, microbatch, self._renderer, temperature, pictures=self._pictures)

    def _backward(self, loss: Tensor) -> None:
        loss.backward()

    def _added_up(self, loss: float, sums: TokenSums) -> tuple[float, TokenSums]:
        return loss, sums

    def _clip(self) -> float:
        return clip_gradients(self._parameters.values(), self._config.optim.grad_norm)

    def counters(self) -> dict[str, int]:
        return {"version": self._version, "steps": self._steps, "skipped": self._skipped}

    def _rate(self) -> float:
        """The learning rate of the step that is number `_steps`, from 1."""
        warmup = self._config.optim.warmup_updates
        return self._config.optim.lr * min(1.0, self._steps / max(1, warmup))

    def save(self, folder: Path) -> None:
        """What is trained, its optimiser, counters, and how to know the rest again."""
        folder.mkdir(parents=True, exist_ok=True)
        slots = {
            f"{name}/{slot}": self._optimiser.state[parameter][slot].contiguous()
            for name, parameter in self._parameters.items()
            if parameter in self._optimiser.state
            for slot in ADAM_SLOTS
        }
        save_file({name: p.detach().contiguous() for name, p in self._parameters.items()}, folder / WEIGHTS)
        save_file(slots, folder / OPTIMISER)
        write_counters(folder, self._model, **self.counters())

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. The model is filled in place, so whoever holds it sees the change."""
        saved = Saved.read(folder, self._model)
        self._fill(saved)
        self._version, self._steps, self._skipped = saved.version, saved.steps, saved.skipped

    @torch.no_grad()
    def _fill(self, saved: Saved) -> None:
        self._optimiser.state.clear()
        for name, parameter in self._parameters.items():
            parameter.copy_(saved.weights[name])
        for name in saved.stepped:
            parameter = self._parameters[name]
            step, *moments = (saved.slots[f"{name}/{slot}"] for slot in ADAM_SLOTS)
            moved = [step, *(moment.to(parameter.device) for moment in moments)]
            self._optimiser.state[parameter] = dict(zip(ADAM_SLOTS, moved, strict=True))


@dataclass(slots=True, kw_only=True)
class _Tally:
    """What one batch adds up to: the steps that were taken, and how many were not.

    Means over tokens are taken at the end, over the whole batch.
    """

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
            "ratio": _mean(sums.ratio, sums.tokens),
            "kl": _mean(sums.kl, sums.tokens),
            "entropy": _mean(sums.entropy, sums.tokens),
            "logprob_gap": _mean(sums.gap, sums.fresh),
            "engine_kl": _mean(sums.engine_kl, sums.fresh),
            "base_kl": _mean(sums.base_kl, sums.tokens),
            "tokens": float(sums.tokens),
            "samples": float(self.samples),
            "updates": float(steps),
            "skipped": float(self.skipped),
        }


def in_order(samples: Sequence[Sample], dealt: Iterable[Sample], values: Iterable[float]) -> list[float]:
    """What was found for the samples in the order in which they were dealt, in their own."""
    found = {id(sample): value for sample, value in zip(dealt, values, strict=True)}
    return [found[id(sample)] for sample in samples]


def _on_gpu(model: nn.Module) -> bool:
    return next(model.parameters()).is_cuda


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0


def _adamw(
    parameters: Iterable[nn.Parameter], optim: OptimConfig, seed: int, starts: Mapping[nn.Parameter, int]
) -> torch.optim.Optimizer:
    parameters = list(parameters)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    betas = (optim.beta1, optim.beta2)
    if optim.moments == "float32" and all(p.dtype == torch.float32 for p in parameters):
        return torch.optim.AdamW(groups, lr=optim.lr, betas=betas)
    moments, stochastic = DTYPES[optim.moments], optim.rounding == "stochastic"
    return RoundingAdamW(
        groups,
        lr=optim.lr,
        betas=betas,
        moments=moments,
        stochastic=stochastic,
        seed=seed,
        starts=starts,
    )


def _tokens(microbatch: Microbatch, logp_T: Tensor, entropy_T: Tensor, old_logp_T: Tensor) -> Tokens:
    lengths = [len(sample.behaviour_logprobs) for sample in microbatch]
    counts = torch.tensor(lengths, dtype=torch.int64, device=logp_T.device)

    def spread(values: Sequence[float]) -> Tensor:
        """One value for each sample, repeated for each of its sampled tokens."""
        return logp_T.new_tensor(values).repeat_interleave(counts)

    behaviour = [logprob for sample in microbatch for logprob in sample.behaviour_logprobs]
    return Tokens(
        logp_T=logp_T,
        entropy_T=entropy_T,
        old_logp_T=old_logp_T,
        behaviour_logp_T=logp_T.new_tensor(behaviour),
        advantage_T=spread([sample.advantage for sample in microbatch]),
        weight_T=spread([sample.weight for sample in microbatch]),
        replayed_T=spread([sample.replayed for sample in microbatch]).bool(),
    )
