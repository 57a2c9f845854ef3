"""The clipped objective of the paper, over flat token vectors.

Each vector has one value per sampled token of a micro-batch (suffix _T). There are three policies: μ, the
engine's, which sampled the tokens; π_old, the learner's at the start of the batch; π_θ, in training. The
weights contain the normalisation, so losses of micro-batches add up. No model runs here.

The policy did not sample the tokens of a seed of replay, so they have no μ. There π_old takes its place, in
every ratio mode: the ratio is 1 at the first update of a batch, and the clip bounds each token's change per
batch. The gradient is then that of Â log π_θ: the likelihood of the teacher's tokens times the advantage.

The teacher's samples of loss.teacher are seeds, too, but have no advantage: their loss is −log π_θ. They have
no part in the policy loss, in the KL term or in the means of the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from arpo.config import LossConfig

MAX_CORRECTION = 2.0  # upper bound of π_old/μ in ratio mode "truncated", and in the KL term


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The sampled tokens of one micro-batch. Only `logp_T` has a gradient."""

    logp_T: Tensor  # π_θ
    entropy_T: Tensor  # of π_θ at this position
    old_logp_T: Tensor  # π_old
    behaviour_logp_T: Tensor  # μ; NaN if unknown, as at tokens of another model
    advantage_T: Tensor
    weight_T: Tensor
    kl_weight_T: Tensor  # 0 at replayed tokens
    teacher_weight_T: Tensor  # 0 except at tokens of the teacher's samples
    replayed_T: Tensor  # bool
    stale_T: Tensor  # bool: an older policy version sampled the token, in asynchronous training


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSums:
    """Sums over tokens. Unlike means, they add up over micro-batches.

    `gap`, `engine_kl` and `surprise` cover tokens of the current version: there μ and π_old should agree.
    `base_kl` covers all tokens that are not replayed, with the correction of stale ones. Only the last two
    cover tokens of the teacher's samples.
    """

    tokens: int = 0
    fresh: int = 0  # not replayed
    current: int = 0  # of the current version, not replayed
    clipped: float = 0.0
    capped: float = 0.0
    ratio: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0  # π_old against π_θ
    base_kl: float = 0.0  # π_θ against the base model
    gap: float = 0.0  # |log π_old − log μ|
    engine_kl: float = 0.0  # μ against π_old
    surprise: float = 0.0  # −log π_old
    stale_kl: float = 0.0  # as engine_kl, at stale tokens, where μ is an older policy
    teacher_tokens: int = 0
    teacher_nll: float = 0.0  # −log π_θ of these tokens

    def __add__(self, other: TokenSums) -> TokenSums:
        return TokenSums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """The parts of the objective at each token, without gradient."""

    ratio_T: Tensor
    clipped_T: Tensor  # bool: the clip replaced ρ Â, and the token has no gradient
    capped_T: Tensor  # bool: π_old/μ reached MAX_CORRECTION


def policy_loss(tokens: Tokens, loss: LossConfig, replay_ratio: str) -> tuple[Tensor, TokenSums, TokenTerms]:
    """−Σ weight · correction · min(ρ Â, clip(ρ) Â).

    Each kind of token has its ratio mode: new ones loss.ratio, stale ones loss.stale_ratio, replayed ones
    `replay_ratio`. Replayed tokens without μ, those of seeds, have "recompute".
    """
    seeded_T = tokens.replayed_T & tokens.behaviour_logp_T.isnan()
    behaviour_T = torch.where(seeded_T, tokens.old_logp_T, tokens.behaviour_logp_T)
    current, stale, replayed = (
        _anchor(mode, tokens.old_logp_T, behaviour_T) for mode in (loss.ratio, loss.stale_ratio, replay_ratio)
    )
    anchor_T, correction_T = (
        torch.where(tokens.replayed_T, r, torch.where(tokens.stale_T, s, c))
        for r, s, c in zip(replayed, stale, current, strict=True)
    )

    ratio_T = (tokens.logp_T - anchor_T).exp()
    clipped_T = ratio_T.clamp(1 - loss.clip_low, 1 + loss.clip_high)
    free_T, bound_T = ratio_T * tokens.advantage_T, clipped_T * tokens.advantage_T
    objective_T = correction_T * torch.min(free_T, bound_T)
    terms = TokenTerms(
        ratio_T=ratio_T.detach(), clipped_T=bound_T < free_T, capped_T=correction_T >= MAX_CORRECTION
    )
    return -(tokens.weight_T * objective_T).sum(), _sums(tokens, terms), terms


def kl_loss(tokens: Tokens, base_logp_T: Tensor) -> tuple[Tensor, TokenSums]:
    """Σ kl_weight · correction · KL(π_θ ‖ base), estimated per token with k3.

    The estimate holds for tokens of the current policy: stale ones are corrected by min(π_old/μ, 2), and
    replayed ones have no part in it.
    """
    fresh_T = ~tokens.replayed_T
    correction_T = _correction(tokens.old_logp_T, tokens.behaviour_logp_T)
    correction_T = torch.where(tokens.stale_T, correction_T, torch.ones_like(correction_T))
    kl_T = correction_T[fresh_T] * k3(tokens.logp_T[fresh_T], base_logp_T[fresh_T])
    return (tokens.kl_weight_T[fresh_T] * kl_T).sum(), TokenSums(base_kl=kl_T.sum().item())


def teacher_loss(tokens: Tokens) -> tuple[Tensor, TokenSums]:
    """−Σ teacher_weight · log π_θ, over the tokens of the teacher's samples."""
    taught_T = tokens.teacher_weight_T > 0
    nll_T = -tokens.logp_T[taught_T]
    sums = TokenSums(teacher_tokens=nll_T.numel(), teacher_nll=nll_T.sum().item())
    return (tokens.teacher_weight_T[taught_T] * nll_T).sum(), sums


def k3(logp_T: Tensor, other_logp_T: Tensor) -> Tensor:
    """Estimate of KL(p ‖ q) at tokens sampled from p: q/p − 1 − log q/p. Unbiased and never negative."""
    log_ratio_T = other_logp_T - logp_T
    return log_ratio_T.exp() - 1 - log_ratio_T


def _anchor(mode: str, old_logp_T: Tensor, behaviour_logp_T: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probabilities in the denominator of ρ, factor on the surrogate), both without gradient."""
    no_correction_T = torch.ones_like(old_logp_T)
    match mode:
        case "recompute":
            return old_logp_T, no_correction_T
        case "behaviour":
            return behaviour_logp_T, no_correction_T
        case "truncated":
            return old_logp_T, _correction(old_logp_T, behaviour_logp_T)
    raise ValueError(f"ratio mode {mode!r}: must be recompute, behaviour or truncated")


def _correction(old_logp_T: Tensor, behaviour_logp_T: Tensor) -> Tensor:
    """Importance weight min(π_old/μ, 2) of tokens that μ has sampled."""
    return (old_logp_T - behaviour_logp_T).exp().clamp(max=MAX_CORRECTION)


@torch.no_grad()
def _sums(tokens: Tokens, terms: TokenTerms) -> TokenSums:
    own_T = tokens.teacher_weight_T == 0
    return engine_sums(tokens) + TokenSums(
        tokens=int(own_T.sum()),
        clipped=terms.clipped_T[own_T].sum().item(),
        capped=terms.capped_T[own_T].sum().item(),
        ratio=terms.ratio_T[own_T].sum().item(),
        entropy=tokens.entropy_T[own_T].sum().item(),
        kl=k3(tokens.old_logp_T, tokens.logp_T)[own_T].sum().item(),
    )


@torch.no_grad()
def engine_sums(tokens: Tokens) -> TokenSums:
    """The disagreement of μ and π_old: at tokens of the current version, and at stale ones."""
    fresh_T = ~tokens.replayed_T
    current_T, stale_T = fresh_T & ~tokens.stale_T, fresh_T & tokens.stale_T
    kl_T = k3(tokens.behaviour_logp_T, tokens.old_logp_T)
    gap_T = (tokens.old_logp_T - tokens.behaviour_logp_T).abs()
    return TokenSums(
        fresh=int(fresh_T.sum()),
        current=int(current_T.sum()),
        gap=gap_T[current_T].sum().item(),
        engine_kl=kl_T[current_T].sum().item(),
        surprise=-tokens.old_logp_T[current_T].sum().item(),
        stale_kl=kl_T[stale_T].sum().item(),
    )


def engine_metrics(sums: TokenSums) -> dict[str, float]:
    """Means over the compared tokens. A mean over no token is absent: then nothing was compared."""
    stale = sums.fresh - sums.current
    return {
        "engine_tokens": float(sums.current),
        **({"logprob_gap": sums.gap / sums.current} if sums.current else {}),
        **({"engine_kl": sums.engine_kl / sums.current} if sums.current else {}),
        **({"engine_surprise": sums.surprise / sums.current} if sums.current else {}),
        **({"stale_kl": sums.stale_kl / stale} if stale else {}),
    }
