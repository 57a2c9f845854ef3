import math
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.algorithms.advantages import ESTIMATORS, advantages, has_signal, state_advantages


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


def flat(values_GT: tuple[tuple[float, ...], ...]) -> list[float]:
    return [value for values_T in values_GT for value in values_T]


# An episode that succeeds in three steps, one that fails in two, one that succeeds in one.
STATES = ["ABC", "AB", "A"]
REWARDS = [1.0, 0.0, 1.0]


def test_steps_from_equal_states_are_compared() -> None:
    """With discount 0.5, A has the returns 0.25, 0, 1 (mean 5/12, variance 13/72) and B has 0.5, 0."""
    sigma = math.sqrt(13 / 72)
    values = state_advantages(STATES, REWARDS, 0.5, "grpo")
    assert list(map(len, values)) == [3, 2, 1]
    assert flat(values) == pytest.approx([-2 / 12 / sigma, 1, 0, -5 / 12 / sigma, -1, 7 / 12 / sigma])
    values = state_advantages(STATES, REWARDS, 0.5, "mean")
    assert flat(values) == pytest.approx([-2 / 12, 0.25, 0, -5 / 12, -0.25, 7 / 12])


def test_a_state_visited_twice_by_an_episode_counts_both_steps() -> None:
    """The returns from A are 0.5 and 1 in the success, 0 in the failure: mean 0.5, variance 1/6."""
    (first, second), (failed,) = state_advantages(["AA", "A"], [1.0, 0.0], 0.5, "grpo")
    assert (first, second, failed) == pytest.approx((0, 0.5 * math.sqrt(6), -0.5 * math.sqrt(6)))
    assert state_advantages(["AA", "B"], [1.0, 0.0], 0.5, "grpo") == ((-1.0, 1.0), (0.0,))


def test_the_shorter_success_is_better_unless_rewards_are_not_discounted() -> None:
    assert state_advantages(["AB", "A"], [1.0, 1.0], 0.95, "grpo") == ((-1.0, 0.0), (1.0,))
    assert state_advantages(["AB", "A"], [1.0, 1.0], 1.0, "grpo") == ((0.0, 0.0), (0.0,))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_states_without_spread_give_exact_zeros(estimator: str) -> None:
    assert state_advantages(["AB", "A"], [0.0, 0.0], 0.95, estimator) == ((0.0, 0.0), (0.0,))
    assert state_advantages(["AB", "AB"], [1.0, 1.0], 0.95, estimator) == ((0.0, 0.0), (0.0, 0.0))
    assert state_advantages(["AB", "CD"], [1.0, 0.0], 0.95, estimator) == ((0.0, 0.0), (0.0, 0.0))


@given(
    episodes=st.lists(
        st.tuples(st.text("ABC", min_size=1, max_size=6), st.sampled_from([-1.0, 0.0, 0.4, 1.0])),
        min_size=2,
        max_size=6,
    ),
    discount=st.sampled_from([0.5, 0.95, 1.0]),
)
def test_state_advantages_agree_with_a_search_for_each_step(
    episodes: list[tuple[str, float]], discount: float
) -> None:
    """For each step, all steps of the group are searched for its state; rewards flow back step by step."""
    steps = []
    for states, reward in episodes:
        rewards_T = [0.0] * (len(states) - 1) + [reward]
        for t, state in enumerate(states):
            value = 0.0
            for later in reversed(rewards_T[t:]):
                value = later + discount * value
            steps.append((state, value))
    expected = []
    for state, value in steps:
        peers = [other for name, other in steps if name == state]
        spread = pstdev(peers)
        expected.append((value - fmean(peers)) / spread if spread >= 1e-6 else 0.0)
    states_GT, rewards_G = zip(*episodes, strict=True)
    assert flat(state_advantages(states_GT, rewards_G, discount, "grpo")) == pytest.approx(expected, abs=1e-6)
