"""Measured times, interpolated and spread over GPUs."""

from __future__ import annotations

import pytest
from simulation.service_times import ServiceTimes


def test_learning_is_interpolated_between_the_measured_sizes() -> None:
    times = ServiceTimes()
    assert [times.learn(screenshots) for screenshots in (1, 5, 10, 15)] == [0.8, 2.3, 5.2, 8.1]
    assert times.learn(20) == pytest.approx(8.1 + 5 * 0.58)


def test_an_update_takes_as_long_as_its_slowest_gpu() -> None:
    """8.1, 2.3, 2.3, 2.3 and 0.8 s on two GPUs: 8.1 and 7.7 s."""
    times = ServiceTimes()
    assert times.update([5, 1, 15, 5, 5], gpus=1) == pytest.approx(15.8)
    assert times.update([5, 1, 15, 5, 5], gpus=2) == pytest.approx(8.1 / 0.95)
    assert times.update([15], gpus=16) == pytest.approx(8.1 / 0.90)


def test_weights_and_decoding() -> None:
    times = ServiceTimes()
    assert times.load == pytest.approx(15.4 / 1.8)
    assert times.decode(16) == pytest.approx(0.016, abs=0.0001)
