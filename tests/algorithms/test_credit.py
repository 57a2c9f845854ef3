from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from arpo.algorithms.credit import Credit
from arpo.config import LossConfig
from arpo.plugins import Plugin
from arpo.types import Group, Screenshot, Trajectory
from trajectories import group, trajectory, turn


def visits(states: str, score: float, **settings: Any) -> Trajectory:
    """An episode with one turn of two tokens per letter; equal letters are equal screenshots."""
    turns = [
        replace(turn([1], [2, 3], restart=not number), screenshot=Screenshot.of(state.encode()))
        for number, state in enumerate(states)
    ]
    return trajectory(score, *turns, **settings)


def turn_advantages(*episodes: Trajectory, **loss: Any) -> list[list[float]]:
    return [list(values) for values in Credit(LossConfig(**loss)).turn_advantages(group(*episodes))]


def test_without_state_weight_all_turns_have_the_advantage_of_the_episode() -> None:
    assert turn_advantages(visits("AB", 1), visits("A", 0)) == [[1.0, 1.0], [-1.0]]


def test_the_state_advantage_is_added_with_its_weight() -> None:
    """A has the returns 0.5 and 0: the state advantages are +1 and -1. B and C have one step each."""
    episodes = visits("AB", 1), visits("AC", 0)
    assert turn_advantages(*episodes, state_weight=0.5, state_discount=0.5) == [[1.5, 1.0], [-1.5, -1.0]]
    assert turn_advantages(*episodes, state_weight=2, state_discount=0.5, advantage="mean") == [
        [0.5 + 2 * 0.25, 0.5],
        [-0.5 - 2 * 0.25, -0.5],
    ]


def test_an_answer_that_does_not_parse_is_penalised_from_its_state() -> None:
    """Rewards -1 and 0. From A, the returns are -0.5 and 0; from B, they are -1 and 0."""
    episodes = visits("AB", 0, malformed=True), visits("AB", 0)
    values = turn_advantages(*episodes, state_weight=1, state_discount=0.5, advantage="mean")
    assert values == [[-0.5 - 0.25, -0.5 - 0.5], [0.5 + 0.25, 0.5 + 0.5]]


def test_equal_rewards_leave_the_state_advantage_alone() -> None:
    assert turn_advantages(visits("AB", 1), visits("A", 1), state_weight=0.5) == [[-0.5, 0.0], [0.5]]
    assert turn_advantages(visits("AB", 0), visits("A", 0), state_weight=0.5) == [[0.0, 0.0], [0.0]]


def test_equal_screenshots_of_two_tasks_are_two_states() -> None:
    """Replay by goal family adds an episode of another task: its instruction is different."""
    failed = visits("A", 0, task="t")
    assert turn_advantages(failed, visits("A", 1, task="u"), state_weight=1) == [[-1.0], [1.0]]
    assert turn_advantages(failed, visits("A", 1, task="t"), state_weight=1) == [[-2.0], [2.0]]


def test_a_single_episode_is_compared_with_nothing() -> None:
    assert turn_advantages(visits("AA", 1), state_weight=1) == [[0.0, 0.0]]
    assert turn_advantages(state_weight=1) == []


def test_states_are_compared_by_the_rewards_of_a_plug_in_beside_its_advantages() -> None:
    def advantage(rewards: Sequence[float], group: Group) -> list[float]:
        return [3.0, -3.0]

    loss = LossConfig(state_weight=1, state_discount=0.5)
    credit = Credit(loss, None, Plugin(key="plugins.advantage", name="mine:advantage", function=advantage))
    one = group(visits("AB", 1, name="a"), visits("A", 0, name="b"))
    assert credit.turn_advantages(one) == ((4.0, 3.0), (-4.0,))


def test_negative_advantages_are_damped() -> None:
    success, *failures = turn_advantages(visits("A", 1), *[visits("B", 0)] * 7, negative=0.5)
    assert success == pytest.approx([7**0.5])
    assert failures == [pytest.approx([-(7**-0.5) / 2])] * 7
    one = group(visits("A", 1), visits("B", 0))
    assert Credit(LossConfig(negative=0.5)).advantages(one) == (1.0, -0.5)
    assert Credit(LossConfig(negative=0)).advantages(one) == (1.0, 0.0)


def test_the_sum_of_both_advantages_is_damped() -> None:
    """Rewards 1 and 0.5, so ±0.25 as episodes. From A, the returns are 0.25 and 0.5, so ∓0.125 as steps."""
    loss = {"advantage": "mean", "state_weight": 4, "state_discount": 0.25, "negative": 0.5}
    assert turn_advantages(visits("AB", 1), visits("A", 0.5), **loss) == [
        [(0.25 - 4 * 0.125) * 0.5, 0.25],
        [-0.25 + 4 * 0.125],
    ]
