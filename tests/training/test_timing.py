"""Durations of stages, and estimates from them."""

from __future__ import annotations

import pytest

from arpo.reporting.display import format_seconds
from arpo.training.reporting import Timing


def timed(*moments: float, known: dict[str, float] | None = None) -> Timing:
    clock = iter((0.0, *moments))
    return Timing(known, clock=lambda: next(clock))


def test_stages_are_timed_until_they_are_taken() -> None:
    timing = timed(0.0, 2.0, 2.0, 5.0, 5.0, 6.0, 0.0, 4.0, 0.0, 1.0)
    for stage in ("rollout", "learn", "rollout"):
        with timing.stage(stage):
            pass
    assert timing.take(12) == {"rollout": 3.0, "learn": 3.0, "episodes_per_second": 4.0}
    with timing.stage("rollout"):
        pass
    assert timing.take(2) == {"rollout": 4.0, "episodes_per_second": 0.5}
    with timing.stage("learn"):
        pass
    timing.add({"rollout": 2.0})
    assert timing.take(8) == {"learn": 1.0, "rollout": 2.0, "episodes_per_second": 4.0}


def test_the_rest_of_a_batch_takes_as_long_as_the_last_time() -> None:
    stages = ("rollout", "learn", "save")
    timing = timed(0.0, 10.0, 100.0, 100.0, 104.0, 108.0, known={"rollout": 30.0, "learn": 8.0, "save": 2.0})
    with timing.stage("rollout"):
        assert timing.remaining(stages) == (30.0 - 10.0) + 8.0 + 2.0
    with timing.stage("learn"):  # the rollout took 100 s, which no longer matters
        assert timing.remaining(stages) == (8.0 - 4.0) + 2.0


def test_a_stage_that_takes_longer_than_the_last_time_ends_soon() -> None:
    timing = timed(0.0, 50.0, 50.0, known={"rollout": 30.0, "learn": 8.0})
    with timing.stage("rollout"):
        assert timing.remaining(("rollout", "learn")) == 8.0


def test_an_unknown_duration() -> None:
    assert timed(known={"rollout": 30.0}).about(("rollout", "learn")) == "duration unknown"
    assert timed(known={"save": 30.0}).about(("save",)) == "about 30 s"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "1 s"), (20.4, "20 s"), (100.0, "2 min"), (7000.0, "2 h")]
)
def test_estimates_as_text(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_the_rate_of_asynchronous_training_is_over_waiting_and_learning() -> None:
    timing = timed(0.0, 1.0, 1.0, 4.0)
    with timing.stage("wait"):
        pass
    with timing.stage("learn"):
        pass
    assert timing.take(8) == {"wait": 1.0, "learn": 3.0, "episodes_per_second": 2.0}


def test_stages_have_the_moment_of_their_begin() -> None:
    timing = timed(1.0, 3.0, 4.0, 9.0)
    for stage in ("rollout", "learn"):
        with timing.stage(stage):
            pass
    assert timing.take_stages() == [("rollout", 1.0, 2.0), ("learn", 4.0, 5.0)]
    assert timing.take_stages() == []
