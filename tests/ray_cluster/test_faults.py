"""Training on a Ray cluster of four nodes that loses nodes, servers, hosts and its driver: 1,024 episodes.

Every reward is computed again from the stored actions. Every group is trained once. One environment in ten
breaks in all of these runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import in_process_server
from arpo.envs.desk.env import DeskEnv
from arpo.envs.task_files import load_tasks
from arpo.storage.checkpoint import CHECKPOINTS, latest
from arpo.storage.codec import action_from_json
from arpo.types import Task
from processes import wait_until
from ray_clusters import SECONDS, Nodes, TrainCommand, places, processes_with, ray_nodes
from real_vllm import PYTHON

TASKS = {task.id: task for task in load_tasks("desk:32")}
SETTINGS = (
    "--env.name=faulty_desk:FaultyDesk",
    "--model.prompt=desk",
    "--tasks.heldout=",
    "--train.tasks_per_batch=32",
    "--train.tasks_per_update=16",
    "--loss.kl=0",
    "--rollout.max_steps=5",
    "--env.parallel=16",
    "--eval.every=0",
    "--eval.rollouts=1",
    "--run.threads=1",
    "--store.tensorboard=false",
    "--cluster.host_nodes=desktops",
    "--cluster.replica_nodes=servers",
)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ray_nodes({"desktops": 1}, {"desktops": 1}, {"servers": 1}, {"servers": 1}) as started:
        yield started


def words(nodes: Nodes, *more: str) -> tuple[str, ...]:
    return ("desk", f"--cluster.ray={nodes.address}", *SETTINGS, *more)


def lines(run: Path, name: str) -> list[dict[str, Any]]:
    path = run / name
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


async def score_again(task: Task, stored: Mapping[str, Any]) -> float:
    env = DeskEnv(224, 168, 0.0)
    await env.start(task)
    for turn in stored["turns"]:
        if turn["actions"]:
            await env.step(tuple(action_from_json(action) for action in turn["actions"]))
    return await env.evaluate()


def assert_correct(run: Path, expected: set[str]) -> None:
    """All expected episodes are stored once, with the right score, or failed. At most 1% failed."""
    stored = [one for one in lines(run, "trajectories.jsonl") if one["episode_id"] in expected]
    failed = {one["episode_id"] for one in lines(run, "failures.jsonl")} & expected
    names = [one["episode_id"] for one in stored]
    assert len(names) == len(set(names)) and set(names) | failed == expected
    assert not failed & set(names) and len(failed) <= len(expected) / 100
    wrong = [one for one in stored if asyncio.run(score_again(TASKS[one["task_id"]], one)) != one["score"]]
    assert not wrong


def lock_step_episodes(batches: int) -> set[str]:
    return {f"batch{b}-{g}-{e}" for b in range(batches) for g in range(32) for e in range(2)}


def kill_driver(command: TrainCommand) -> None:
    """End the driver at once. Ray ends all services of its run."""
    command.process.send_signal(signal.SIGKILL)
    command.process.wait()
    assert wait_until(lambda: not processes_with("env-host"), SECONDS)


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
    assert [line["step"] for line in after] == list(range(9)) and after[-1]["episodes"] == 512
    assert after[: newest.step + 1] == before[: newest.step + 1]
    next_batch = played.find(f'{{"episode_id":"batch{newest.step}-'.encode())
    finished = played if next_batch < 0 else played[:next_batch]
    assert len(finished) > 0 and (run / "trajectories.jsonl").read_bytes().startswith(finished)
    assert_correct(run, lock_step_episodes(8))


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
    assert [line["step"] for line in after] == list(range(5)) and after[-1]["episodes"] == 256
    assert max(line.get("engine_kl", 0.0) for line in after) < 1e-3
    assert_correct(run, lock_step_episodes(4))


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
    after, batches = command.metrics(), lines(run, "batches.jsonl")
    assert [line["step"] for line in after] == list(range(9)) and after[-1]["episodes"] == 256
    assert all(line["staleness_max"] <= 1 for line in after[1:])
    trained = [number for record in batches for number in record["groups"]]
    assert len(trained) == len(set(trained)) == 128
    assert not set(trained) & {number for record in batches for number in record["dropped"]}
    assert_correct(run, {f"group-{number}-{episode}" for number in trained for episode in range(2)})


def test_a_real_vllm_server_on_a_node_trains_with_the_learners_weights(nodes: Nodes, tmp_path: Path) -> None:
    """16 episodes. engine_kl compares the log-probabilities of server and learner."""
    assert PYTHON.exists(), "vLLM is not installed: make vllm"
    few = ("--tasks.ids=pool-001,pool-010,pool-013,pool-021", "--train.tasks_per_batch=4")
    engine = ("--engine.name=vllm", "--engine.replicas=1", f"--engine.python={PYTHON}")
    more = (*engine, *few, "--train.tasks_per_update=4", "--train.epochs=2", "--cluster.hosts=1")
    command = TrainCommand(tmp_path / "run", *words(nodes, *more))
    command.end()
    after = command.metrics()
    assert [line["step"] for line in after] == [0, 1, 2] and after[-1]["episodes"] == 16
    assert max(line.get("engine_kl", 0.0) for line in after) < 1e-3
    assert_correct(
        tmp_path / "run", {f"batch{b}-{g}-{e}" for b in range(2) for g in range(4) for e in range(2)}
    )
