"""Rewards with known noise: worked numbers, plain simulations, and the alarm."""

from __future__ import annotations

from dataclasses import replace
from math import comb
from random import Random

import pytest

from arpo.algorithms.advantages import ESTIMATORS, advantages
from arpo.algorithms.noisy_rewards import (
    FALSE_ALARMS,
    Audit,
    Confusion,
    Noise,
    confusion,
    doubtful,
    fisher,
    is_judged_success,
)
from arpo.types import Group, Trajectory
from trajectories import trajectory

A, B = 0.2, 0.1  # false positives, false negatives
NOISE = Noise(false_positives=A, false_negatives=B)


def verdict(success: bool, rng: Random, a: float = A, b: float = B) -> bool:
    """A judge with known error rates, without the formulas of the module."""
    return rng.random() >= b if success else rng.random() < a


def batch(rng: Random, *, episodes: int = 64, rate: float = 0.4, a: float = A, b: float = B) -> Confusion:
    truths = [rng.random() < rate for _ in range(episodes)]
    wrong = [verdict(truth, rng, a, b) != truth for truth in truths]
    return Confusion(
        failures=truths.count(False),
        false_positives=sum(w for w, truth in zip(wrong, truths, strict=True) if not truth),
        successes=truths.count(True),
        false_negatives=sum(w for w, truth in zip(wrong, truths, strict=True) if truth),
    )


@pytest.mark.parametrize(
    ("share", "success", "precision"),
    [
        (0.2, 0, 0),  # as many as in a group of failures
        (0.375, 0.25, 0.6),  # 0.25 · 0.9 / (0.25 · 0.9 + 0.75 · 0.2)
        (0.55, 0.5, 9 / 11),
        (0.9, 1, 1),
        (1, 1, 1),
    ],
)
def test_the_true_success_rate_behind_a_share_of_verdicts(
    share: float, success: float, precision: float
) -> None:
    assert NOISE.success(share) == pytest.approx(success)
    assert NOISE.precision(share) == pytest.approx(precision)


def test_both_equal_those_of_a_simulation() -> None:
    rng = Random(1)
    truths = [rng.random() < 0.25 for _ in range(100_000)]
    judged = [(truth, verdict(truth, rng)) for truth in truths]
    positive = [truth for truth, said in judged if said]
    share = len(positive) / len(judged)
    assert NOISE.success(share) == pytest.approx(sum(truths) / len(truths), abs=0.01)
    assert NOISE.precision(share) == pytest.approx(sum(positive) / len(positive), abs=0.01)


def test_a_perfect_judge_is_believed_and_a_useless_one_is_not() -> None:
    assert Noise(false_positives=0, false_negatives=0).precision(1 / 8) == 1
    assert Noise(false_positives=0.5, false_negatives=0.5).precision(0.5) == 0


@pytest.mark.parametrize("estimator", sorted(ESTIMATORS))
def test_the_affine_correction_of_a_group_changes_at_most_the_scale_of_its_advantages(estimator: str) -> None:
    """So it is not built: (v - 0.2) / 0.7 scales those without a division by σ by 1 / 0.7."""
    raw = [1.0, 0, 0, 1, 0, 0, 0, 0]
    corrected = [(one - A) / (1 - A - B) for one in raw]
    scale = 1 if estimator.startswith("grpo") else 1 / 0.7
    expected = [scale * one for one in advantages(raw, estimator)]
    assert advantages(corrected, estimator) == pytest.approx(expected)


def episode(number: int, score: float, evaluated: float | None) -> Trajectory:
    return replace(trajectory(score, name=f"batch-1-0-{number}"), evaluated=evaluated)


def group(*episodes: Trajectory) -> Group:
    return Group(index=0, task_id=episodes[0].task_id, trajectories=episodes)


@pytest.mark.parametrize(
    ("score", "evaluated", "weight", "expected"),
    [
        (1, None, 0.25, True),
        (0, None, 0.25, False),
        (0.25, 0, 0.25, True),
        (0.75, 1, 0.25, False),
        (1, 1, 0.25, True),
        (0, 1, 1, False),
        (0.625, 0.5, 0.25, True),
    ],
)
def test_the_verdict_in_a_score(score: float, evaluated: float | None, weight: float, expected: bool) -> None:
    assert is_judged_success(episode(0, score, evaluated), weight) is expected


def test_audited_episodes_are_counted() -> None:
    episodes = [episode(0, 1, 0), episode(1, 0, 0), episode(2, 0, 1), episode(3, 1, 1), episode(4, 1, None)]
    expected = Confusion(failures=2, false_positives=1, successes=2, false_negatives=1)
    assert confusion(episodes, 1.0, 0.5) == expected
    assert expected.noise() is None  # of so few
    many = sum([expected] * 5, Confusion())
    assert many.noise() == Noise(false_positives=0.5, false_negatives=0.5)
    hard = Confusion(failures=10, false_positives=2, successes=9, false_negatives=9)
    assert hard.noise() == Noise(false_positives=0.2, false_negatives=0)


@pytest.mark.parametrize(("positives", "kept"), [(1, False), (2, False), (3, True), (8, True)])
def test_a_success_is_doubtful_if_failures_alone_explain_it(positives: int, kept: bool) -> None:
    judged = group(*(episode(number, float(number < positives), None) for number in range(8)))
    found = doubtful([judged], NOISE, 0.5)
    assert (judged.trajectories[0].episode_id not in found) is kept
    assert not doubtful([judged], None, 0.5)  # no audited episodes: verdicts are all there is


def test_a_success_is_doubtful_if_the_evaluator_denies_it() -> None:
    assert doubtful([group(episode(0, 1, 0), episode(1, 1, 1))], None, 0.5) == {"batch-1-0-0"}


def test_fishers_test_counts_all_arrangements() -> None:
    """3 of 4 against 1 of 6: P(at least 3 of the 4 errors are among the 4 of 10)."""
    expected = (comb(4, 3) * comb(6, 1) + comb(4, 4)) / comb(10, 4)
    assert fisher(3, 4, 1, 6) == pytest.approx(expected)


def test_a_judge_that_says_yes_to_everything_is_found_within_ten_batches() -> None:
    """In each of 50 runs, after 5, 20 or 80 batches with 20% and 10% errors, also with 8 episodes a batch."""
    for seed in range(50):
        rng, audit = Random(seed), Audit()
        for _ in range((5, 20, 80)[seed % 3]):
            audit = audit.add(batch(rng, episodes=8))
        assert not audit.drifts()
        found = False
        for _ in range(10):
            audit = audit.add(batch(rng, episodes=8, a=1.0, b=0.0))
            found = found or bool(audit.drifts())
        assert found


@pytest.mark.slow
def test_constant_errors_give_no_alarm_while_the_success_rate_rises() -> None:
    """100 runs of 100 batches: the stated rate allows one of them to report something."""
    alarms = 0
    for seed in range(100):
        rng, audit, alarm = Random(seed), Audit(), False
        for number in range(100):
            audit = audit.add(batch(rng, episodes=16, rate=0.1 + 0.008 * number))
            alarm = alarm or bool(audit.drifts())
        alarms += alarm
    assert alarms <= 100 * FALSE_ALARMS


def test_the_alarm_names_the_rates() -> None:
    audit = Audit()
    for false_positives in [2] * 5 + [10] * 5:
        audit = audit.add(
            Confusion(failures=10, false_positives=false_positives, successes=10, false_negatives=1)
        )
    assert audit.drifts() == ["100% of the failures judged a success, 20% before"]
    assert (audit.batches, audit.earlier.failures) == (10, 30)  # no more since the drift began


def test_few_errors_of_a_drift_do_not_make_the_verdicts_trusted() -> None:
    """The model fails so rarely that the recent batches have fewer failures than a rate needs."""
    audit = Audit()
    for number in range(15):
        audit = audit.add(Confusion(failures=10) if number < 10 else Confusion(failures=1, false_positives=1))
    noise = audit.noise()
    assert audit.drifts() and noise is not None and noise.false_positives == 1


def test_a_drift_does_not_end_by_itself() -> None:
    audit = Audit()
    for number in range(60):
        audit = audit.add(Confusion(failures=20, false_positives=2 if number < 10 else 12))
        assert bool(audit.drifts()) == (number > 11), number
    for _ in range(5):
        audit = audit.add(Confusion(failures=20, false_positives=2))
    assert not audit.drifts()


def test_after_a_drift_the_recent_errors_count() -> None:
    """5% of the failures for 50 batches, then 80%: the mean, 12%, would trust three of four verdicts."""
    audit = Audit()
    for number in range(55):
        wrong = 1 if number < 50 else 16
        audit = audit.add(Confusion(failures=20, false_positives=wrong, successes=0, false_negatives=0))
    noise = audit.noise()
    assert noise is not None and noise.false_positives == 0.8
    assert noise.precision(0.75) == 0
    steady = Audit().add(Confusion(failures=20, false_positives=1)).noise()
    assert steady is not None and steady.false_positives == 0.05
