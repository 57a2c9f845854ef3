import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.advantages import ESTIMATORS, advantages, has_signal


def test_one_success_in_eight_as_published() -> None:
    success, *failures = advantages([1, 0, 0, 0, 0, 0, 0, 0], "grpo")
    assert round(success, 2) == 2.65
    assert {round(failure, 2) for failure in failures} == {-0.38}
    assert success == pytest.approx(math.sqrt(7))


def test_one_success_in_eight_with_the_sample_deviation() -> None:
    """Sample variance: (0.875² + 7 · 0.125²) / 7 = 0.125, so σ = 0.3536 and the success has 0.875 / σ."""
    success, *failures = advantages([1, 0, 0, 0, 0, 0, 0, 0], "grpo_sample")
    assert success == pytest.approx(0.875 / math.sqrt(0.125))
    assert round(success, 2) == 2.47
    assert {round(failure, 2) for failure in failures} == {-0.35}
    assert advantages([1, 0], "grpo_sample") == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])


def test_one_success_in_two() -> None:
    assert advantages([1, 0], "grpo") == (1.0, -1.0)
    assert advantages([1, 0], "mean") == (0.5, -0.5)
    assert advantages([1, 0], "rloo") == (1.0, -1.0)


def test_partial_credit() -> None:
    # mean 0.5; deviations ±0.5, ±0.25; population variance (0.25 + 0.0625) / 2 = 0.15625
    assert advantages([1, 0.75, 0.25, 0], "grpo") == pytest.approx(
        [
            0.5 / math.sqrt(0.15625),
            0.25 / math.sqrt(0.15625),
            -0.25 / math.sqrt(0.15625),
            -0.5 / math.sqrt(0.15625),
        ]
    )
    assert advantages([1, 0.75, 0.25, 0], "mean") == (0.5, 0.25, -0.25, -0.5)
    # the others of the first: (0.75 + 0.25 + 0) / 3 = 1/3
    assert advantages([1, 0.75, 0.25, 0], "rloo") == pytest.approx([2 / 3, 1 / 3, -1 / 3, -2 / 3])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_equal_rewards_give_exact_zeros(estimator: str) -> None:
    assert advantages([0.1] * 3, estimator) == (0.0, 0.0, 0.0)
    assert advantages([0.3, 0.1 + 0.2], estimator) == (0.0, 0.0)
    assert advantages([1.0], estimator) == (0.0,)
    assert advantages([], estimator) == ()


def test_sigma_below_a_millionth_is_zero() -> None:
    assert not has_signal([0.0, 1.9e-6])  # σ = 0.95e-6
    assert has_signal([0.0, 2.1e-6])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(rewards=st.lists(st.floats(-1, 1), min_size=2, max_size=16))
def test_advantages_sum_to_zero_and_keep_the_order(estimator: str, rewards: list[float]) -> None:
    values = advantages(rewards, estimator)
    assert sum(values) == pytest.approx(0, abs=1e-6)
    by_reward = [value for _, value in sorted(zip(rewards, values, strict=True))]
    assert by_reward == sorted(by_reward)
