"""Worked numbers for the test of a comparison, and its rate of false positives."""

import math
from random import Random

import numpy as np
import pytest
from scipy.stats import t as student

from arpo.reporting.statistics import (
    MeanTest,
    change_of_counts,
    change_over_tasks,
    holm,
    mean_over_seeds_and_tasks,
)


def test_the_test_of_a_comparison() -> None:
    found = mean_over_seeds_and_tasks([[0.1, 0.3, 0.2], [0.2, 0.5, 0.2], [0.3, 0.4, 0.5]])
    # Means by seed 0.2, 0.3, 0.4: variance 0.01. Means by task 0.2, 0.4, 0.3: variance 0.01.
    # Squared error 0.01/3 + 0.01/3, degrees of freedom 2 + 2, quantile 2.776445.
    assert found.mean == pytest.approx(0.3)
    half_width = 2.776445 * math.sqrt(0.02 / 3)
    assert found.interval == pytest.approx((0.3 - half_width, 0.3 + half_width), abs=1e-6)
    # t = 3.674235; for 4 degrees of freedom p = 1 - x (3 - x²) / 2 with x = t / sqrt(t² + 4).
    x = 0.3 / math.sqrt(0.02 / 3)
    x /= math.sqrt(x * x + 4)
    assert found.p == pytest.approx(1 - x * (3 - x * x) / 2) == pytest.approx(0.021312, abs=1e-6)


def plain_test(table: list[list[float]]) -> tuple[float, float]:
    """Another way to the statistic: the analysis of variance. Returns t and the degrees of freedom."""
    rows, columns = len(table), len(table[0])
    mean = sum(map(sum, table)) / (rows * columns)
    between_rows = columns * sum((sum(row) / columns - mean) ** 2 for row in table) / (rows - 1)
    between_columns = (
        rows
        * sum((sum(row[column] for row in table) / rows - mean) ** 2 for column in range(columns))
        / (columns - 1)
    )
    total = between_rows + between_columns
    degrees = total**2 / (between_rows**2 / (rows - 1) + between_columns**2 / (columns - 1))
    return mean / math.sqrt(total / (rows * columns)), degrees


def test_the_test_agrees_with_an_analysis_of_variance() -> None:
    rng = Random(4)
    for rows, columns in ((2, 5), (3, 32), (5, 128)):
        table = [[rng.gauss(0.05, 0.3) for _ in range(columns)] for _ in range(rows)]
        t, degrees = plain_test(table)
        assert mean_over_seeds_and_tasks(table).p == pytest.approx(2 * student.sf(abs(t), degrees))


def test_the_interval_excludes_0_if_p_is_below_5_percent() -> None:
    rng = Random(1)
    for _ in range(100):
        table = [[rng.gauss(0.1, 0.3) for _ in range(16)] for _ in range(3)]
        found = mean_over_seeds_and_tasks(table)
        assert found.interval is not None
        assert (found.p < 0.05) == (found.interval[0] > 0 or found.interval[1] < 0)


def test_one_seed_is_tested_over_tasks_alone() -> None:
    found = mean_over_seeds_and_tasks([[0.1, 0.2, 0.3]])
    half_width = 4.302653 * 0.1 / math.sqrt(3)
    assert found.interval == pytest.approx((0.2 - half_width, 0.2 + half_width), abs=1e-6)
    over_seeds = mean_over_seeds_and_tasks([[0.1], [0.2], [0.3]])
    assert over_seeds.interval == pytest.approx(found.interval) and over_seeds.p == pytest.approx(found.p)


def test_tables_without_variation() -> None:
    assert mean_over_seeds_and_tasks([[0.5]]) == MeanTest(mean=0.5, interval=None, p=1.0)
    assert mean_over_seeds_and_tasks([[0.25] * 3] * 2) == MeanTest(mean=0.25, interval=(0.25, 0.25), p=0.0)
    assert mean_over_seeds_and_tasks([[0.0] * 3] * 2).p == 1.0
    assert mean_over_seeds_and_tasks([[0.1] * 3] * 3).p == 0.0  # despite rounding of the means


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "between_seeds", "between_tasks"),
    [(3, 0.0, 0.0), (3, 0.3, 0.0), (3, 0.3, 0.5), (5, 0.3, 0.0), (5, 0.1, 1.0)],
)
def test_at_most_7_percent_of_comparisons_without_a_difference_have_p_below_5_percent(
    seeds: int, between_seeds: float, between_tasks: float
) -> None:
    """Two methods with equal chances, 48 tasks, 4 rollouts. Deviations in logits; 0.3 is 7 points a run."""
    rng, trials = np.random.default_rng(7), 800
    shape = (trials, 2, seeds, 48)  # two methods
    chances = rng.normal(0.3, 2.0, (trials, 1, 1, 48))
    effects = between_tasks / 2 * rng.normal(size=(trials, 1, 1, 48))  # on single tasks; 0 in the mean
    runs = rng.normal(0, between_seeds, (trials, 2, seeds, 1))
    logits = chances + np.concatenate([effects, -effects], axis=1) + runs + rng.normal(size=shape)
    rates = rng.binomial(4, 1 / (1 + np.exp(-logits))) / 4
    found = sum(mean_over_seeds_and_tasks(table).p < 0.05 for table in (rates[:, 0] - rates[:, 1]).tolist())
    assert found / trials <= 0.07


def test_a_real_difference_is_found() -> None:
    """+8 points with a deviation of 5 points between seeds, five seeds: most comparisons find it."""
    rng, found = Random(0), 0
    for _ in range(200):
        offsets = [rng.gauss(0.08, 0.05) for _ in range(5)]
        table = [[offset + rng.gauss(0, 0.3) for _ in range(128)] for offset in offsets]
        found += mean_over_seeds_and_tasks(table).p < 0.05
    assert found / 200 >= 0.6


@pytest.mark.parametrize(
    ("p_values", "corrected"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),  # 3 x 0.01, 2 x 0.03, then no less than that
        ([0.02, 0.5, 0.9], [0.06, 1.0, 1.0]),
        ([0.04], [0.04]),
        ([], []),
    ],
)
def test_the_correction_of_holm(p_values: list[float], corrected: list[float]) -> None:
    assert holm(p_values) == pytest.approx(corrected)


def test_a_change_over_tasks_has_the_interval_of_a_paired_test() -> None:
    low, high = change_over_tasks([0.0, 0.5, 0.0, 0.5], [0.5, 0.5, 0.5, 0.5])
    assert (low, high) == pytest.approx((0.25 - 0.4594, 0.25 + 0.4594), abs=1e-3)  # 3.182 x 0.2887 / 2
    assert change_over_tasks([0.0, 0.0], [1.0, 0.0]) == (-1.0, 1.0)  # 12.7 x 0.5 is cut


def test_equal_changes_of_all_tasks_are_not_certain() -> None:
    """Wilson's interval of 0 of 8 ends at 0.3244; the difference of two of them is as wide."""
    assert change_over_tasks([0.0] * 8, [0.0] * 8) == pytest.approx((-0.3244, 0.3244), abs=1e-4)
    assert change_over_tasks([0.0], [1.0])[0] < 0


def test_the_interval_of_a_difference_of_counts() -> None:
    """An example of Newcombe (1998), table II: 56 of 70 and 48 of 80."""
    assert change_of_counts((48, 80), (56, 70)) == pytest.approx((0.0524, 0.3339), abs=1e-4)
