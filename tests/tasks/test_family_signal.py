"""The signal of goal families: worked numbers."""

from __future__ import annotations

import json

import pytest

from arpo.tasks.family_signal import FamilySignal
from trajectories import scored


def signal() -> FamilySignal:
    """The families of a task are the letters of its id."""
    return FamilySignal(tuple, threshold=0.5)


def test_a_family_without_groups_has_the_prior() -> None:
    assert signal().weight(["a"]) == signal().weight(["a", "b"]) == 0.25 + 0.05


def test_the_signal_estimates_the_variance_of_each_task() -> None:
    """2 successes of 4: 2·2 / (4·3) = 1/3. Then 0 of 4: 0. Partial credit is no success."""
    found = signal()
    found.record(scored(1, 0, 0.5, 0.4, task="a").trajectories)
    assert found.weight(["a"]) == pytest.approx((0.25 + 1 / 3) / 2 + 0.05)
    found.record(scored(0, 0, 0, 0, task="a").trajectories)
    assert found.weight(["a"]) == pytest.approx((0.25 + 0.9 / 3) / (1 + 1.9) + 0.05)


def test_tasks_solved_always_or_never_give_no_signal_although_half_of_the_episodes_succeed() -> None:
    found = signal()
    for _ in range(40):
        found.record(scored(1, 1, task="a").trajectories)
        found.record(scored(0, 0, task="a").trajectories)
        found.record(scored(1, 0, task="b").trajectories)
    assert found.weight(["a"]) == pytest.approx(0.05 + 0.25 / 11, rel=0.01)
    assert found.weight(["b"]) == pytest.approx(0.05 + (0.25 + 0.5 * 10) / 11, rel=0.02)


def test_each_number_of_goals_has_its_own_record_and_a_combination_has_the_mean() -> None:
    found = signal()
    found.record(scored(1, 0, task="ab").trajectories)
    found.record(scored(1, 1, task="bc").trajectories)
    one, other = (0.25 + 0.5) / 2, (0.25 + 0.9 * 0.5) / (1 + 1.9)
    assert found.weight(["a", "b"]) == pytest.approx((one + other) / 2 + 0.05)
    assert found.weight(["a"]) == 0.3


def test_a_lone_episode_tells_nothing() -> None:
    found = signal()
    found.record(scored(1, task="a").trajectories)
    found.record(())
    assert found.state() == signal().state()


def test_the_state_of_a_checkpoint_restores_the_same_weights() -> None:
    found, restored = signal(), signal()
    for scores in ((1, 0, 0), (1, 1, 0), (0, 0, 0)):
        found.record(scored(*scores, task="ab").trajectories)
    restored.restore(json.loads(json.dumps(found.state())), ())
    assert restored.weight(["a", "b"]) == found.weight(["a", "b"])
    assert restored.state() == found.state()
