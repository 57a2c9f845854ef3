"""Sampling of tokens from logits: temperature, one uniform draw per token, and the exact log-probability."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MAX_PART = 2048  # tokens of the vocabulary whose probabilities are summed at once


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """The draws of one answer, in [0, 1). They depend on the seed alone."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


def sample(
    logits_BV: Tensor, temperatures_B: Sequence[float], uniforms_B: Sequence[float]
) -> tuple[list[int], list[float]]:
    """(token, log-probability at the temperature) of each row, by inversion of the cumulative distribution.

    Temperature 0 takes the most likely token with log-probability 0. Raises `FloatingPointError` if a logit
    is not finite. A GPU is waited for once.
    """
    numbers_2B = torch.tensor((temperatures_B, uniforms_B), dtype=torch.float64, device=logits_BV.device)
    temperature_B1 = numbers_2B[0, :, None].float()
    greedy_B1 = temperature_B1 == 0
    logps_BV = (logits_BV.float() / temperature_B1.masked_fill(greedy_B1, 1.0)).log_softmax(-1)
    drawn_B1 = _invert(logps_BV, numbers_2B[1, :, None])
    token_B1 = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), drawn_B1)
    logp_B1 = logps_BV.gather(-1, token_B1).masked_fill(greedy_B1, 0.0)
    finite_B1 = logps_BV.isfinite().all(-1, keepdim=True)
    tokens, logps, finite = torch.cat((token_B1, logp_B1.double(), finite_B1), 1).T.tolist()
    if not all(finite):
        raise FloatingPointError("the model's logits are not finite")
    return [int(token) for token in tokens], logps


def likely_others(
    logits_BV: Tensor, temperatures_B: Sequence[float], tokens_B: Sequence[int], count: int
) -> list[tuple[tuple[int, float], ...]]:
    """The `count` most likely tokens of each row other than the sampled one, with their log-probabilities.

    They are at the temperature, and at temperature 0 at 1.
    """
    temperature_B1 = torch.tensor(temperatures_B, device=logits_BV.device)[:, None]
    logps_BV = (logits_BV.float() / temperature_B1.masked_fill(temperature_B1 == 0, 1.0)).log_softmax(-1)
    logps_BK, tokens_BK = logps_BV.topk(min(count + 1, logps_BV.shape[1]))
    return [
        tuple(pair for pair in zip(tokens, logps, strict=True) if pair[0] != sampled)[:count]
        for sampled, tokens, logps in zip(tokens_B, tokens_BK.tolist(), logps_BK.tolist(), strict=True)
    ]


def _invert(logps_BV: Tensor, uniforms_B1: Tensor) -> Tensor:
    """The token of each row under its draw. Sums are float64.

    Sums over a large vocabulary come in two stages, first over equal parts: a GPU adds one long row slowly.
    """
    vocabulary = logps_BV.shape[1]
    if vocabulary <= _MAX_PART:
        cumulative_BV = logps_BV.double().exp().cumsum(-1)
        return _search(cumulative_BV, uniforms_B1 * cumulative_BV[:, -1:])
    padding = -vocabulary % _MAX_PART
    parts_BPK = torch.nn.functional.pad(logps_BV.exp(), (0, padding)).unflatten(1, (-1, _MAX_PART))
    cumulative_BP = parts_BPK.sum(-1, dtype=torch.float64).cumsum(-1)
    draws_B1 = uniforms_B1 * cumulative_BP[:, -1:]
    part_B1 = _search(cumulative_BP, draws_B1)
    before_B1 = torch.nn.functional.pad(cumulative_BP, (1, 0)).gather(1, part_B1)
    chosen_BK = parts_BPK.gather(1, part_B1[..., None].expand(-1, -1, _MAX_PART))[:, 0]
    return part_B1 * _MAX_PART + _search(chosen_BK.cumsum(-1, dtype=torch.float64), draws_B1 - before_B1)


def _search(cumulative_BV: Tensor, draws_B1: Tensor) -> Tensor:
    """The first index of each row whose sum exceeds the draw.

    By rounding, a draw may reach the total. The last index with a probability is meant then.
    """
    last_B1 = torch.searchsorted(cumulative_BV, cumulative_BV[:, -1:].contiguous())
    found_B1 = torch.searchsorted(cumulative_BV, draws_B1, right=True).minimum(last_B1)
    return found_B1.clamp_(max=cumulative_BV.shape[1] - 1)  # for infinite sums and NaN
