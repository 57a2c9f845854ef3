"""Training on a Ray cluster of four nodes that loses hosts, servers, nodes and its driver: 768 episodes.

Every reward is computed again from the stored actions. Every group is trained once. One environment in ten
breaks in all of these runs.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import in_process_server
from arpo.storage.checkpoint import CHECKPOINTS, latest
from cluster_runs import assert_correct, kill_driver, lock_step_episodes, words
from ray_clusters import Nodes, TrainCommand, places, processes_with, ray_nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes({"desktops": 1}, {"desktops": 1}, {"servers": 1}, {"servers": 1}) as started:
        yield started


def test_a_run_survives_the_loss_of_hosts_and_of_its_driver(nodes: Nodes, tmp_path: Path) -> None:
    """512 episodes: a host is killed, its node removed, then the driver is killed and started again."""
    run = tmp_path / "run"
    arguments = words(nodes, "--cluster.hosts=2", "--train.epochs=8")
    command = TrainCommand(run, *arguments)
    command.until_batch(1)
    os.kill(min(processes_with("env-host")), signal.SIGKILL)
    command.until_batch(2)
    nodes.remove(places("desktops")[0])
    command.until(lambda: "starts again on" in command.output)
    command.until_batch(4)
    kill_driver(command)
    before, played = command.metrics(), (run / "trajectories.jsonl").read_bytes()
    newest, _ = latest(run / CHECKPOINTS)
    assert newest is not None and newest.step >= 3
    nodes.add({"desktops": 1})
    command = TrainCommand(run, *arguments)
    command.end()
    assert "resuming from" in command.output
    after = command.metrics()
    assert [line["step"] for line in after] == list(range(9))
    assert after[: newest.step + 1] == before[: newest.step + 1]
    next_batch = played.find(f'{{"episode_id":"batch-{newest.step + 1}-'.encode())
    finished = played if next_batch < 0 else played[:next_batch]
    assert len(finished) > 0 and (run / "trajectories.jsonl").read_bytes().startswith(finished)
    assert after[-1]["episodes"] == assert_correct(run, lock_step_episodes(8))


def test_a_run_survives_the_loss_of_a_server_and_its_node(nodes: Nodes, tmp_path: Path) -> None:
    """256 episodes: the server comes back on the other node, with the newest weights."""
    run = tmp_path / "run"
    python = in_process_server.install(tmp_path)
    engine = ("--engine.name=vllm", "--engine.replicas=2", f"--engine.python={python}")
    command = TrainCommand(run, *words(nodes, *engine, "--cluster.hosts=2", "--train.epochs=4"))
    command.until_batch(1)
    nodes.remove(places("servers")[0])
    command.until(lambda: "vLLM server 0 was lost" in command.output)
    command.end()
    nodes.add({"servers": 1})
    after = command.metrics()
    assert [line["step"] for line in after] == list(range(5))
    assert max(line.get("engine_kl", 0.0) for line in after) < 1e-3
    assert after[-1]["episodes"] == assert_correct(run, lock_step_episodes(4))
