"""Time of rollouts on a Ray cluster if one environment in ten breaks, against environments that never do.

Starts a Ray cluster of three nodes on this machine, on loopback, and trains the tiny model there, with two
environment hosts. Both kinds of environments wait as long as a small desktop does: 0.5 s to start, 0.2 s for
a step. A faulty one raises an error in its start, in its first step or in its evaluation; the episode is
played again. Runs alternate, so that both kinds see the same load of the machine. Needs `arpo[ray]`.

Prints one JSON line. `slower` is the relative difference of the mean times of a batch. Training is
asynchronous by default, so an episode that is played again delays no other one. In lock step (--max-staleness
0), a batch waits for its last episode: with few episodes per environment, a late fault costs a whole episode.

    python benchmarks/faulty_environments.py [--max-staleness 1] [--batches 4] [--repeats 2]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo.actions import Action
from arpo.envs.desk.env import DeskEnv
from arpo.types import Observation, StepResult, Task

START_SECONDS, STEP_SECONDS = 0.5, 0.2
FAULTS = ("start", "step", "evaluate")
EPISODES = 64  # per batch
STAGES = ("rollout", "wait", "learn", "save")
SETTINGS = (
    *("--tasks.heldout=", "--train.tasks_per_batch=32", "--train.tasks_per_update=32", "--loss.kl=0"),
    *("--eval.every=0", "--eval.rollouts=1", "--rollout.max_steps=6", "--env.parallel=32"),
    *("--run.threads=1", "--store.tensorboard=false", "--cluster.hosts=2", "--optim.lr=1e-9"),
)
_made = itertools.count()


class HealthyDesk(DeskEnv):
    """Desk with the waiting times of a small desktop."""

    fault = ""

    def __init__(self) -> None:
        super().__init__(224, 168, 0.0)

    async def start(self, task: Task) -> Observation:
        await self._work("start", START_SECONDS)
        return await super().start(task)

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        await self._work("step", STEP_SECONDS)
        return await super().step(actions)

    async def evaluate(self) -> float:
        await self._work("evaluate", STEP_SECONDS)
        return await super().evaluate()

    async def _work(self, call: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if call == self.fault:
            raise RuntimeError(f"the desktop broke in {call}")


class FaultyDesk(HealthyDesk):
    """One in ten breaks, in one of three calls."""

    def __init__(self) -> None:
        super().__init__()
        number = next(_made)
        self.fault = FAULTS[number // 10 % 3] if number % 10 == 9 else ""


def measure(
    kind: type[DeskEnv], address: str, folder: Path, batches: int, staleness: int
) -> tuple[list[float], int, int]:
    """Seconds of each batch but the first, broken attempts, and failed episodes. Evaluations are left out."""
    name = f"faulty_environments:{kind.__name__}"
    command = [sys.executable, "-m", "arpo", "train", "desk", *SETTINGS, f"--env.name={name}"]
    command += [f"--cluster.ray={address}", f"--train.epochs={batches + 1}", f"--run.dir={folder}"]
    command += [f"--train.max_staleness={staleness}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [json.loads(line) for line in (folder / "timing.jsonl").read_text("utf-8").splitlines()]
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text("utf-8"))
    seconds = [sum(line.get(stage, 0.0) for stage in STAGES) for line in lines[1:]]
    calls = [json.loads(line) for line in (folder / "calls.jsonl").read_text("utf-8").splitlines()]
    return seconds, sum(bool(line.get("fault")) for line in calls), summary["failures"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--max-staleness", type=int, default=1)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"HealthyDesk": [], "FaultyDesk": []}
    broken = failures = 0
    with tempfile.TemporaryDirectory() as folder:
        # Ray writes a token to HOME, and its name for "loopback only" is that of other systems.
        os.environ |= {
            "HOME": folder,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)
        from ray.cluster_utils import Cluster

        common = {"node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
        head = {"num_cpus": 0, "include_dashboard": False, **common}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(2):
                cluster.add_node(wait=True, num_cpus=2, **common)
            for repeat, kind in itertools.product(range(options.repeats), (HealthyDesk, FaultyDesk)):
                run = Path(folder) / f"{kind.__name__}-{repeat}"
                found, breaks, failed = measure(
                    kind, cluster.address, run, options.batches, options.max_staleness
                )
                seconds[kind.__name__] += found
                broken += breaks
                failures += failed
        finally:
            cluster.shutdown()
    healthy, faulty = fmean(seconds["HealthyDesk"]), fmean(seconds["FaultyDesk"])
    result = {
        "healthy_seconds": round(healthy, 2),
        "faulty_seconds": round(faulty, 2),
        "slower": round(faulty / healthy - 1, 3),
        "episodes": 2 * options.repeats * options.batches * EPISODES,
        "broken_attempts": broken,
        "failed_episodes": failures,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
