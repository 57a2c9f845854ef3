"""The short form of the soak test: servers and trainer are killed by the progress of the run, not by time."""

from __future__ import annotations

from pathlib import Path

import pytest
from soak import Plan, growth, read, simulated, soak


def batches(run: Path) -> float:
    path = run / "metrics.jsonl"
    return float(len(path.read_text("utf-8").splitlines())) if path.exists() else 0.0


@pytest.mark.slow
def test_an_asynchronous_run_under_constant_faults_trains_every_group_once(tmp_path: Path) -> None:
    found = soak(tmp_path, Plan(end=5, server=2, trainer=3, clock=batches))
    assert found["passed"], found
    assert found["kills"]["server"] >= 1 and found["kills"]["trainer"] >= 1
    assert found["faults"] >= 3 and found["groups"] >= 24
    assert all(line.get("staleness_max", 0) <= 1 for line in read(tmp_path / "run", "metrics.jsonl"))


@pytest.mark.slow
def test_a_simulated_run_under_constant_faults_trains_every_group_once(tmp_path: Path) -> None:
    found = simulated(tmp_path, Plan(end=20, server=1, trainer=8, clock=batches))
    assert found["kills"]["server"] >= 16 and found["kills"]["trainer"] == 2
    assert found["faults"] >= 3 and found["groups"] >= 8 and found["staleness_max"] <= 1


def test_memory_grows_from_the_second_to_the_last_quarter_of_the_longest_life() -> None:
    quarters = [*[100.0] * 200, *[200.0] * 200, *[210.0] * 200, *[220.0] * 200]
    assert growth([[1.0], quarters, [5.0] * 10]) == pytest.approx(1.1)
    assert growth([[1.0] * 100]) is None
