"""Sampling by inversion: worked draws, exact log-probabilities, one stream of numbers for each seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from arpo.engines.token_sampling import likely_others, sample, uniforms
from devices import DEVICES

LOGITS = torch.tensor([0.5, 0.25, 0.25]).log()


def draw(temperature: float, uniform: float) -> tuple[int, float]:
    (token,), (logp,) = sample(LOGITS[None], [temperature], [uniform])
    return token, logp


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (1 - 1e-16, 2)]
)
def test_a_draw_picks_the_token_under_it(uniform: float, token: int) -> None:
    assert draw(1.0, uniform)[0] == token


def test_log_probabilities_are_at_the_sampling_temperature() -> None:
    assert draw(1.0, 0.0)[1] == pytest.approx(math.log(0.5))
    # At temperature 0.5 the odds are squared: 4 to 1 to 1.
    assert draw(0.5, 0.7) == (1, pytest.approx(math.log(1 / 6), abs=1e-6))


def test_temperature_zero_is_certain() -> None:
    assert draw(0.0, 0.99) == (0, 0.0)


def test_a_token_without_probability_is_never_drawn() -> None:
    logits = torch.tensor([[-1e9, 0.0, -1e9]])
    for uniform in (0.0, 1 - 1e-16):
        tokens, _ = sample(logits, [1.0], [uniform])
        assert tokens == [1]


def test_rows_have_their_own_temperature_and_draw() -> None:
    tokens, _ = sample(LOGITS.expand(3, 3), [1.0, 0.0, 1.0], [0.9, 0.9, 0.1])
    assert tokens == [2, 0, 0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_large_vocabulary_is_searched_in_two_stages(device: str) -> None:
    """The token equals that of one long sum, also for draws next to the edges of its parts."""
    logits_BV = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5000)) * 3)
    logits_BV[1, 2040:2060] = -1e9  # tokens without probability around an edge
    logits_BV[2, 100:] = -1e9
    cumulative_BV = logits_BV.float().log_softmax(-1).double().exp().cumsum(-1)
    edges_BK = cumulative_BV[:, [0, 99, 2039, 2047, 2048, 4095, 4096, 4998]]
    for draw in [*np.random.default_rng(1).random(200), 0.0, 1 - 1e-16, *(edges_BK[0] + 1e-9).tolist()]:
        draws_B1 = torch.full((3, 1), float(draw), dtype=torch.float64)
        expected_B1 = torch.searchsorted(cumulative_BV, draws_B1 * cumulative_BV[:, -1:], right=True)
        last_B1 = torch.tensor([[4999], [4999], [99]])
        tokens, _ = sample(logits_BV.float().to(device), [1.0] * 3, [float(draw)] * 3)
        assert tokens == expected_B1.minimum(last_B1)[:, 0].tolist()
        assert not 2040 <= tokens[1] < 2060


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error(bad: float, temperature: float, device: str) -> None:
    """Also in one row among finite ones."""
    logits_BV = torch.tensor([[0.0, 1.0], [0.0, bad]], device=device)
    with pytest.raises(FloatingPointError, match="the model's logits are not finite"):
        sample(logits_BV, [temperature] * 2, [0.0] * 2)


def test_the_seed_alone_decides_the_numbers() -> None:
    assert np.array_equal(uniforms(7, 3), uniforms(7, 5)[:3])
    assert not np.array_equal(uniforms(7, 3), uniforms(8, 3))
    assert 0.45 < uniforms(1, 1000).mean() < 0.55


def test_likely_others_leave_out_the_sampled_token() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1]]).log()
    first, second = likely_others(logits, [1.0, 0.0], tokens_B=[1, 1], count=2)
    assert [token for token, _ in first] == [0, 2]
    assert [logp for _, logp in first] == pytest.approx([math.log(0.5), math.log(0.2)])
    assert [token for token, _ in second] == [0, 2]
    [[(token, logp)]] = likely_others(logits[:1], [0.5], tokens_B=[2], count=1)
    assert (token, logp) == (0, pytest.approx(math.log(0.25 / (0.25 + 0.09 + 0.04))))
    [found] = likely_others(logits[:1], [1.0], tokens_B=[0], count=9)
    assert [token for token, _ in found] == [1, 2], "no more than the vocabulary has"
