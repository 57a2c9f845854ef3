"""Training commands of the fault tests, and checks of what they stored."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arpo.actions import action_from_json
from arpo.envs.desk.env import DeskEnv
from arpo.tasks.lists import load_tasks
from arpo.types import Task
from processes import wait_until
from ray_clusters import SECONDS, Nodes, TrainCommand, processes_with

TASKS = {task.id: task for task in load_tasks("desk:pool")}
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


def assert_correct(run: Path, expected: set[str]) -> int:
    """All expected episodes are stored once, with the right score, or failed three times, at most 1% of them.

    Returns the number of stored ones.
    """
    stored = [one for one in lines(run, "trajectories.jsonl") if one["episode_id"] in expected]
    failed = {one["episode_id"] for one in lines(run, "failures.jsonl")} & expected
    names = [one["episode_id"] for one in stored]
    assert len(names) == len(set(names)) and set(names) | failed == expected
    assert not failed & set(names) and len(failed) <= len(expected) / 100
    wrong = [one for one in stored if asyncio.run(score_again(TASKS[one["task_id"]], one)) != one["score"]]
    assert not wrong
    return len(stored)


def lock_step_episodes(batches: int) -> set[str]:
    return {f"batch-{b + 1}-{g}-{e}" for b in range(batches) for g in range(32) for e in range(2)}


def kill_driver(command: TrainCommand) -> None:
    """End the driver at once. Ray ends all services of its run."""
    command.process.send_signal(signal.SIGKILL)
    command.process.wait()
    assert wait_until(lambda: not processes_with("env-host"), SECONDS)
