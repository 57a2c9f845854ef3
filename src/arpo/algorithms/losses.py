"""The clipped objective over flat token vectors, as it stands in the paper.

Every vector holds one value for each sampled token of a micro-batch (suffix _T). Three policies meet here: μ,
the engine's, that sampled; π_old, the learner's at the start of the batch; π_θ, the one being trained.
Weights already hold the normalisation, so losses of micro-batches add up. No model is run here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from arpo.config import LossConfig

MAX_CORRECTION = 2.0  # of π_old/μ in ratio mode "truncated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """One micro-batch's sampled tokens. Only `logp_T` carries a gradient."""

    logp_T: Tensor  # π_θ
    entropy_T: Tensor  # of π_θ's whole distribution there
    old_logp_T: Tensor  # π_old
    behaviour_logp_T: Tensor  # μ
    advantage_T: Tensor
    weight_T: Tensor
    replayed_T: Tensor  # bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSums:
    """Sums over tokens, which add up over micro-batches where means would not.

    `gap` and `engine_kl` are over fresh tokens alone: there μ and π_old should agree, so watch them.
    """

    tokens: int = 0
    fresh: int = 0
    clipped: float = 0.0
    ratio: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0  # π_old against π_θ
    base_kl: float = 0.0  # π_θ against the base model
    gap: float = 0.0  # |log π_old − log μ|
    engine_kl: float = 0.0  # μ against π_old

    def __add__(self, other: TokenSums) -> TokenSums:
        return TokenSums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


def policy_loss(tokens: Tokens, loss: LossConfig, replay_ratio: str) -> tuple[Tensor, TokenSums]:
    """−Σ weight · correction · min(ρ Â, clip(ρ) Â), replayed tokens under a ratio mode of their own."""
    fresh = _anchor(loss.ratio, tokens.old_logp_T, tokens.behaviour_logp_T)
    replayed = _anchor(replay_ratio, tokens.old_logp_T, tokens.behaviour_logp_T)
    anchor_T, correction_T = (
        torch.where(tokens.replayed_T, r, f) for r, f in zip(replayed, fresh, strict=True)
    )

    ratio_T = (tokens.logp_T - anchor_T).exp()
    clipped_T = ratio_T.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    free_T, bound_T = ratio_T * tokens.advantage_T, clipped_T * tokens.advantage_T
    objective_T = correction_T * torch.min(free_T, bound_T)
    return -(tokens.weight_T * objective_T).sum(), _sums(tokens, ratio_T, bound_T < free_T)


def kl_loss(tokens: Tokens, base_logp_T: Tensor) -> tuple[Tensor, TokenSums]:
    """Σ weight · KL(π_θ ‖ base), each token by the k3 estimator."""
    kl_T = k3(tokens.logp_T, base_logp_T)
    return (tokens.weight_T * kl_T).sum(), TokenSums(base_kl=kl_T.sum().item())


def k3(logp_T: Tensor, other_logp_T: Tensor) -> Tensor:
    """KL(p ‖ q) at tokens sampled from p: q/p − 1 − log q/p. Unbiased, and never negative."""
    log_ratio_T = other_logp_T - logp_T
    return log_ratio_T.exp() - 1 - log_ratio_T


def _anchor(mode: str, old_logp_T: Tensor, behaviour_logp_T: Tensor) -> tuple[Tensor, Tensor]:
    """(the policy that ρ divides by, the factor on the surrogate), neither with a gradient."""
    no_correction_T = torch.ones_like(old_logp_T)
    match mode:
        case "recompute":
            return old_logp_T, no_correction_T
        case "behaviour":
            return behaviour_logp_T, no_correction_T
        case "truncated":
            return old_logp_T, (old_logp_T - behaviour_logp_T).exp().clamp(max=MAX_CORRECTION)
    raise ValueError(f"ratio mode {mode!r}: it must be recompute, behaviour or truncated")


@torch.no_grad()
def _sums(tokens: Tokens, ratio_T: Tensor, clipped_T: Tensor) -> TokenSums:
    fresh_T = ~tokens.replayed_T
    old_logp_T, behaviour_logp_T = tokens.old_logp_T[fresh_T], tokens.behaviour_logp_T[fresh_T]
    return TokenSums(
        tokens=ratio_T.numel(),
        fresh=int(fresh_T.sum()),
        clipped=clipped_T.sum().item(),
        ratio=ratio_T.sum().item(),
        entropy=tokens.entropy_T.sum().item(),
        kl=k3(tokens.old_logp_T, tokens.logp_T).sum().item(),
        gap=(old_logp_T - behaviour_logp_T).abs().sum().item(),
        engine_kl=k3(behaviour_logp_T, old_logp_T).sum().item(),
    )
