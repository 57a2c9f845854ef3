"""Sampling of tokens from logits: temperature, one uniform draw per token, and the exact log-probability."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """The draws of one answer, in [0, 1). They depend on the seed alone."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def sample(logits_BV: Tensor, temperatures_B: Tensor, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """(token, log-probability at the temperature) of each row, by inversion of the cumulative distribution.

    Temperature 0 takes the most likely token with log-probability 0. Raises `FloatingPointError` if a logit
    is not finite.
    """
    greedy_B = temperatures_B == 0
    logps_BV = (logits_BV.float() / temperatures_B.masked_fill(greedy_B, 1.0)[:, None]).log_softmax(-1)
    if not torch.isfinite(logps_BV).all():
        raise FloatingPointError("the model's logits are not finite")
    cumulative_BV = logps_BV.double().exp().cumsum(-1)
    # Rounding moves the last sum off 1; scaled by it, no draw exceeds the last token.
    draws_B1 = (uniforms_B * cumulative_BV[:, -1])[:, None]
    drawn_B = torch.searchsorted(cumulative_BV, draws_B1, right=True)[:, 0]
    token_B = torch.where(greedy_B, logits_BV.argmax(-1), drawn_B.clamp_(max=logits_BV.shape[-1] - 1))
    logp_B = logps_BV.gather(-1, token_B[:, None])[:, 0].masked_fill(greedy_B, 0.0)
    return token_B, logp_B
