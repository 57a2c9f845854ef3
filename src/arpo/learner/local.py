"""The learner in this process: it owns π_old and the updates of a batch.

An update is one pass over its samples in micro-batches, one clipped gradient, one AdamW step (decay on
matrices alone: norms and biases are left free), after a linear warm-up at a constant rate. A step whose loss
or gradient is not finite is skipped and counted. It knows no tasks and draws no random number. `train` does
not give way to the event loop: at the end of a batch nobody else has work.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from arpo.config import Config, OptimConfig
from arpo.engines.base import Weights
from arpo.errors import UserError
from arpo.learner.base import Batch, Metrics
from arpo.losses import Tokens, TokenSums, kl_loss, policy_loss
from arpo.models.forward import sampled_logprobs
from arpo.packing import Microbatch, pack
from arpo.rendering import Renderer

WEIGHTS, OPTIMISER, COUNTERS = "weights.safetensors", "optimiser.safetensors", "learner.json"
ADAM_SLOTS = ("step", "exp_avg", "exp_avg_sq")


class LocalLearner:
    """`base` is a frozen copy of the model that training began with; the KL term alone needs it."""

    def __init__(
        self, model: nn.Module, renderer: Renderer, config: Config, base: nn.Module | None = None
    ) -> None:
        assert base is not None or not config.loss.kl, "a KL term needs the base model"
        self._model = model.eval()  # no dropout: π_old and π_θ are functions of the weights alone
        self._base = base if config.loss.kl else None
        self._renderer = renderer
        self._config = config
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._optimiser = _adamw(self._parameters.values(), config.optim)
        self._version = 0
        self._steps = 0
        self._skipped = 0

    def weights(self) -> Weights:
        return Weights(version=self._version, handle=self._model)

    async def train(self, batch: Batch) -> Metrics:
        """Every update of the batch against one π_old, then one version more, even if no sample was left."""
        max_tokens = self._config.optim.tokens_per_microbatch
        updates = [pack(update, max_tokens) for update in batch.updates if update]
        # Until the first step π_θ is π_old: only later updates need its log-probabilities from beforehand.
        old_logps_UM = [
            [self._logprobs(self._model, microbatch) for microbatch in update] if index else None
            for index, update in enumerate(updates)
        ]
        tally = _Tally(samples=sum(map(len, batch.updates)))
        for update, old_logps_M in zip(updates, old_logps_UM, strict=True):
            self._update(update, old_logps_M, tally)
        self._version += 1
        return tally.metrics() | {"lr": self._rate(), "skipped_total": float(self._skipped)}

    def _update(
        self, update: Sequence[Microbatch], old_logps_M: Sequence[Tensor] | None, tally: _Tally
    ) -> None:
        total, sums = 0.0, TokenSums()
        for index, microbatch in enumerate(update):
            loss, these = self._loss(microbatch, None if old_logps_M is None else old_logps_M[index])
            loss.backward()
            total += loss.item()
            sums += these
        norm = nn.utils.clip_grad_norm_(self._parameters.values(), self._config.optim.grad_norm).item()
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
        temperature = self._config.rollout.temperature
        logp_T, entropy_T = sampled_logprobs(self._model, microbatch, self._renderer, temperature)
        tokens = _tokens(microbatch, logp_T, entropy_T, logp_T.detach() if old_logp_T is None else old_logp_T)
        loss, sums = policy_loss(tokens, self._config.loss, self._config.replay.ratio)
        if self._base is None:
            return loss, sums
        kl, kl_sums = kl_loss(tokens, self._logprobs(self._base, microbatch))
        return loss + self._config.loss.kl * kl, sums + kl_sums

    @torch.no_grad()
    def _logprobs(self, model: nn.Module, microbatch: Microbatch) -> Tensor:
        return sampled_logprobs(model, microbatch, self._renderer, self._config.rollout.temperature)[0]

    def _rate(self) -> float:
        """The learning rate of the step that is number `_steps`, from 1."""
        warmup = self._config.optim.warmup_updates
        return self._config.optim.lr * min(1.0, self._steps / max(1, warmup))

    def save(self, folder: Path) -> None:
        """Weights, optimiser and counters: all that the next `train` depends on."""
        folder.mkdir(parents=True, exist_ok=True)
        slots = {
            f"{name}/{slot}": self._optimiser.state[parameter][slot].contiguous()
            for name, parameter in self._parameters.items()
            if parameter in self._optimiser.state
            for slot in ADAM_SLOTS
        }
        save_file({name: p.detach().contiguous() for name, p in self._parameters.items()}, folder / WEIGHTS)
        save_file(slots, folder / OPTIMISER)
        counters = {"version": self._version, "steps": self._steps, "skipped": self._skipped}
        (folder / COUNTERS).write_text(json.dumps(counters) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote. The model is filled in place, so whoever holds it sees the change."""
        try:
            weights, slots = load_file(folder / WEIGHTS), load_file(folder / OPTIMISER)
            counters = json.loads((folder / COUNTERS).read_text(encoding="utf-8"))
            version, steps, skipped = (int(counters[key]) for key in ("version", "steps", "skipped"))
            self._check_shapes(weights)
            self._fill(weights, slots)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise UserError(f"{folder}: not a checkpoint of this model, or a damaged one: {error}") from error
        self._version, self._steps, self._skipped = version, steps, skipped

    def _check_shapes(self, weights: Mapping[str, Tensor]) -> None:
        wanted = {name: p.shape for name, p in self._parameters.items()}
        found = {name: weight.shape for name, weight in weights.items()}
        differing = sorted(
            name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name)
        )
        if differing:
            name = differing[0]
            raise ValueError(
                f"{name} is {found.get(name, 'missing')}, not {wanted.get(name, 'in the model')}"
            )

    @torch.no_grad()
    def _fill(self, weights: Mapping[str, Tensor], slots: Mapping[str, Tensor]) -> None:
        self._optimiser.state.clear()
        for name, parameter in self._parameters.items():
            parameter.copy_(weights[name])
            if f"{name}/step" in slots:
                step, *moments = (slots[f"{name}/{slot}"] for slot in ADAM_SLOTS)
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


def _mean(total: float, count: int) -> float:
    return total / count if count else 0.0


def _adamw(parameters: Iterable[nn.Parameter], optim: OptimConfig) -> torch.optim.AdamW:
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=optim.lr, betas=(optim.beta1, optim.beta2))


def _tokens(microbatch: Microbatch, logp_T: Tensor, entropy_T: Tensor, old_logp_T: Tensor) -> Tokens:
    counts = [len(sample.behaviour_logprobs) for sample in microbatch]

    def spread(values: Sequence[float]) -> Tensor:
        """One value for each sample, repeated for each of its sampled tokens."""
        return logp_T.new_tensor(values).repeat_interleave(torch.tensor(counts, device=logp_T.device))

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
