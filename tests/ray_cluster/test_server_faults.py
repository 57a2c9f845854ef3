"""Asynchronous training on a Ray cluster with faults (256 episodes), and training with real vLLM there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import in_process_server
from cluster_runs import assert_correct, kill_driver, lines, words
from ray_clusters import Nodes, TrainCommand, processes_with, ray_nodes
from real_vllm import PYTHON
from trained import group_numbers


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes({"desktops": 1}, {"desktops": 1}, {"servers": 1}) as started:
        yield started


def test_an_asynchronous_run_survives_the_loss_of_a_server_and_of_its_driver(
    nodes: Nodes, tmp_path: Path
) -> None:
    """256 episodes with a staleness of at most 1. No group is trained twice, none is lost."""
    run = tmp_path / "run"
    python = in_process_server.install(tmp_path)
    engine = ("--engine.name=vllm", "--engine.replicas=2", f"--engine.python={python}")
    more = (*engine, "--cluster.hosts=2", "--train.max_staleness=1", "--train.epochs=4")
    command = TrainCommand(run, *words(nodes, *more, "--train.tasks_per_batch=16"))
    command.until_batch(2)
    os.kill(min(processes_with("--served-model-name")), signal.SIGKILL)
    command.until_batch(4)
    kill_driver(command)
    command = TrainCommand(run, *words(nodes, *more, "--train.tasks_per_batch=16"))
    command.end()
    after, groups = command.metrics(), lines(run, "groups.jsonl")
    assert [line["step"] for line in after] == list(range(9))
    assert all(line["staleness_max"] <= 1 for line in after[1:])
    trained = group_numbers(groups)
    assert trained == list(range(128))
    played = {f"group-{number}-{episode}" for number in trained for episode in range(2)}
    assert after[-1]["episodes"] == assert_correct(run, played)


def test_a_real_vllm_server_on_a_node_trains_with_the_learners_weights(nodes: Nodes, tmp_path: Path) -> None:
    """16 episodes. engine_kl compares the log-probabilities of server and learner."""
    assert PYTHON.exists(), "vLLM is not installed: make vllm"
    few = (
        "--tasks.train=desk:pool",
        "--tasks.ids=pool-001,pool-010,pool-013,pool-021",
        "--train.tasks_per_batch=4",
    )
    engine = ("--engine.name=vllm", "--engine.replicas=1", f"--engine.python={PYTHON}")
    more = (*engine, *few, "--train.tasks_per_update=4", "--train.epochs=2", "--cluster.hosts=1")
    command = TrainCommand(tmp_path / "run", *words(nodes, *more))
    command.end()
    after = command.metrics()
    assert [line["step"] for line in after] == [0, 1, 2]
    assert max(line.get("engine_kl", 0.0) for line in after) < 1e-3
    played = {f"batch-{b}-{g}-{e}" for b in (1, 2) for g in range(4) for e in range(2)}
    assert after[-1]["episodes"] == assert_correct(tmp_path / "run", played)
