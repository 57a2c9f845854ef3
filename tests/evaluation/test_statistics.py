"""Worked numbers for intervals, tests and pass@k, and the coverage of intervals and tests."""

import math
from random import Random

import pytest

from arpo.evaluation.statistics import (
    crossed_bootstrap,
    pass_at,
    sign_flip_p,
    student_interval,
    t95,
    wilson_interval,
)


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


def test_student_interval() -> None:
    # mean 0.2, deviation 0.1, half-width 4.302653 * 0.1 / sqrt(3)
    assert student_interval([0.1, 0.2, 0.3]) == pytest.approx((0.2 - 0.248414, 0.2 + 0.248414), abs=1e-6)
    assert student_interval([0.5, 0.5]) == (0.5, 0.5)


def test_one_value_has_no_interval() -> None:
    with pytest.raises(ValueError, match="needs two or more values, got 1"):
        student_interval([0.5])


@pytest.mark.parametrize(
    ("degrees_of_freedom", "quantile"),
    [(1, 12.70620), (2, 4.30265), (4, 2.77645), (9, 2.26216), (20, 2.08596), (21, 2.07961), (30, 2.04227),
     (60, 2.00030), (120, 1.97993), (10**6, 1.95997)],
)  # fmt: skip
def test_student_quantiles_match_printed_tables(degrees_of_freedom: int, quantile: float) -> None:
    assert t95(degrees_of_freedom) == pytest.approx(quantile, abs=2e-5)


def test_the_student_interval_covers_the_mean_in_95_percent_of_samples() -> None:
    rng = Random(0)
    samples = [[rng.gauss(1.0, 2.0) for _ in range(3)] for _ in range(4000)]
    held = sum(low <= 1.0 <= high for low, high in map(student_interval, samples))
    assert held / 4000 == pytest.approx(0.95, abs=0.01)


def test_the_bootstrap_of_equal_cells_has_no_width() -> None:
    assert crossed_bootstrap([[0.25] * 7] * 3, Random(0), 100) == (0.25, 0.25)


def test_the_bootstrap_is_the_same_for_the_same_generator() -> None:
    cells = [[Random(f"{row}/{column}").random() for column in range(20)] for row in range(3)]
    assert crossed_bootstrap(cells, Random(1), 700) == crossed_bootstrap(cells, Random(1), 700)
    assert crossed_bootstrap(cells, Random(1), 700) != crossed_bootstrap(cells, Random(2), 700)


def test_the_bootstrap_over_columns_has_the_theoretical_width() -> None:
    # 50 of 100 columns are 1 in every row: the mean of 100 draws has the deviation 0.05.
    low, high = crossed_bootstrap([[0.0, 1.0] * 50] * 4, Random(0), 20_000)
    assert (low, high) == pytest.approx((0.5 - 1.96 * 0.05, 0.5 + 1.96 * 0.05), abs=0.011)


def test_the_bootstrap_over_few_rows_is_wide() -> None:
    # Two rows, 0 and 1: half of all draws select one row twice, for any number of columns.
    assert crossed_bootstrap([[0.0] * 400, [1.0] * 400], Random(0), 4000) == (0.0, 1.0)


def test_the_bootstrap_covers_the_mean_of_rows_and_columns() -> None:
    held = 0
    for trial in range(300):
        rng = Random(trial)
        rows, columns = [[rng.gauss(0, 1) for _ in range(20)] for _ in range(2)]
        cells = [[row + column + rng.gauss(0, 1) for column in columns] for row in rows]
        low, high = crossed_bootstrap(cells, rng, 400)
        held += low <= 0 <= high
    assert held / 300 >= 0.92


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 2.0, 3.0], 2 / 8),  # +++ and ---
        ([1.0, 2.0, -3.0], 8 / 8),  # the sum is 0
        ([1.0, 1.0, 1.0, -1.0], 10 / 16),  # |sum| >= 2: all but the six with two of each sign
        ([0.0, 0.0, 1.0], 1.0),
        ([0.1, 0.2, 0.3], 2 / 8),  # despite rounding in the last digit
        ([-0.7, -0.2, 0.3, 0.6], 1.0),  # the sum is 0 except for rounding
    ],
)
def test_the_exact_sign_flip_test(differences: list[float], p: float) -> None:
    assert sign_flip_p(differences, Random(0), 1) == p


def test_the_sampled_sign_flip_test_agrees_with_the_binomial() -> None:
    # 20 differences of equal size, 15 positive: P(at least 15 heads or 15 tails in 20 flips).
    exact = 2 * sum(math.comb(20, heads) for heads in range(15, 21)) / 2**20
    assert sign_flip_p([1.0] * 15 + [-1.0] * 5, Random(0), 40_000) == pytest.approx(exact, abs=0.004)


def test_the_sampled_sign_flip_test_never_returns_0() -> None:
    assert sign_flip_p([1.0] * 50, Random(0), 999) == 1 / 1000


def test_the_sign_flip_test_has_a_false_positive_rate_of_5_percent() -> None:
    rng = Random(0)
    found = sum(sign_flip_p([rng.gauss(0, 1) for _ in range(30)], rng, 400) < 0.05 for _ in range(1000))
    assert found / 1000 == pytest.approx(0.05, abs=0.02)
