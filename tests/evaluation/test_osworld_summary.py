"""Worked numbers for intervals and pass@k."""

import pytest

from arpo.evaluation.osworld_summary import pass_at, wilson_interval


@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [
        (8, 10, 0.49016, 0.94332),
        (0, 10, 0.0, 0.27753),
        (10, 10, 0.72247, 1.0),
        (1, 1, 0.20655, 1.0),
        (110, 369, 0.25371, 0.34666),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval(successes: float, episodes: int, low: float, high: float) -> None:
    assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=1e-5)


def test_the_interval_of_half_scores_lies_around_their_mean() -> None:
    low, high = wilson_interval(4.5, 9)
    assert (low + high) / 2 == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("k", "scores", "best"),
    [
        (1, [1, 0, 0, 0], 0.25),
        (2, [1, 0, 0, 0], 0.5),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (3, [0, 1, 0, 0], 0.75),
        (4, [0, 0, 0, 1], 1.0),
        (2, [1, 0, 1, 0, 0], 0.7),  # 1 - C(3,2)/C(5,2) = 1 - 3/10
        (4, [0, 0, 0, 0], 0.0),
        (2, [0.5, 0, 1], 2.5 / 3),  # best of each pair: 0.5, 1, 1
    ],
)
def test_pass_at_k(k: int, scores: list[float], best: float) -> None:
    assert pass_at(k, scores) == pytest.approx(best)


def test_pass_at_k_needs_k_scores() -> None:
    with pytest.raises(ValueError, match="pass@3 needs at least 3 scores, got 2"):
        pass_at(3, [1, 0])
