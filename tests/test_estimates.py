"""Worked numbers for intervals and for the best of several tries."""

import pytest

from arpo.estimates import pass_at, wilson


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
def test_wilsons_interval(successes: float, episodes: int, low: float, high: float) -> None:
    assert wilson(successes, episodes) == pytest.approx((low, high), abs=1e-5)


def test_the_interval_of_half_scores_lies_around_their_mean() -> None:
    low, high = wilson(4.5, 9)
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
        (2, [0.5, 0, 1], 2.5 / 3),  # the best of each pair: 0.5, 1, 1
    ],
)
def test_the_best_of_k(k: int, scores: list[float], best: float) -> None:
    assert pass_at(k, scores) == pytest.approx(best)


def test_the_best_of_more_than_there_are_is_not_told() -> None:
    with pytest.raises(ValueError, match="the best of 3 cannot be told from 2 tries"):
        pass_at(3, [1, 0])
