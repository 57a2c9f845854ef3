"""Counts of screening and the tasks that they select."""

from __future__ import annotations

from arpo.tasks.screened import Count, learnable, middle


def test_screening_keeps_what_was_solved_at_least_once() -> None:
    counts = {
        "never": Count(successes=0, rollouts=16),
        "once": Count(successes=1, rollouts=16),
        "always": Count(successes=16, rollouts=16),
    }
    assert list(learnable(counts, drop_always=False)) == ["once", "always"]
    assert list(learnable(counts, drop_always=True)) == ["once"]


def test_the_middle_is_nearest_to_half_and_of_two_the_harder_then_the_earlier():
    of_16 = {"a": 16, "b": 12, "c": 4, "d": 8, "e": 0, "f": 4, "g": 9, "h": 1}
    counts = {name: Count(successes=successes, rollouts=16) for name, successes in of_16.items()}
    ranked = ["d", "g", "c", "f", "b", "h"]  # 8, 9, 4, 4, 12 and 1 of 16; never and always are left out
    for number in range(1, 8):
        assert set(middle(counts, number)) == set(ranked[:number])
    assert list(middle(counts, 3)) == ["c", "d", "g"]  # in the order of the counts


def test_rates_decide_the_middle_where_some_episodes_failed():
    """1 of 2 is the middle; 7 of 15 is nearer to it than 7 of 16."""
    counts = {
        "a": Count(successes=7, rollouts=16),
        "b": Count(successes=7, rollouts=15),
        "c": Count(successes=1, rollouts=2),
    }
    assert list(middle(counts, 2)) == ["b", "c"]


def test_a_rate_of_screening_is_never_0_nor_1() -> None:
    assert Count(successes=0, rollouts=16).rate == 0.5 / 17
    assert Count(successes=8, rollouts=16).rate == 0.5
    assert Count(successes=1, rollouts=1).rate == 0.75
