"""Asynchronous training on Desk under constant faults, against an undisturbed run of the same length.

One environment in ten is faulty: an error in its start, in a step or in its evaluation, a step that hangs,
or an invalid score. A model server is killed every minute, the trainer every ten minutes; the same command
starts it again. After `--minutes`, Ctrl-C ends the run. The servers are those of the tests: the engine of
this package behind the interface of vLLM.

Prints one JSON line, and exits with 1 if a check fails. Every group is trained once, in order, and each of
its episodes is stored once or has failed. `growth` is the memory of the trainer in the last quarter of its
longest life, relative to the second quarter: at most 1.1 (null if no life has four minutes). The caches of
screenshots hold 32 MiB instead of 4.3 GiB, so that they are soon full and only a leak grows. `difference`
is the success rate of the last third of the batches minus that of the undisturbed run: within three standard
errors (`noise`).

With --simulated the minutes are those of a simulated cluster, with replay and without a model, and nothing is
compared: only the groups are checked.

    python benchmarks/soak.py --minutes 30
    python benchmarks/soak.py --minutes 120 --simulated
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from arpo import png
from arpo.actions import Action
from arpo.envs.base import Env
from arpo.envs.desk.env import DeskEnv
from arpo.interrupts import INTERRUPTED
from arpo.types import Observation, StepResult, Task

ROOT = Path(__file__).resolve().parents[1]
SUPPORT = ROOT / "tests" / "support"
FAULTS = ("start", "step", "hang", "evaluate", "score")
GROUP_SIZE, BATCH = 2, 8
MAX_GROWTH = 1.1
CACHE_MIB = 16  # each of the two caches of screenshots
PAUSE, LONG_LIFE = 0.5, 240.0  # seconds: between two looks at the trainer; of a life with a measured growth
SETTINGS = {
    "tasks.distinct": 32,
    "tasks.heldout": "",
    "replay.enabled": "false",
    "model.prompt": "desk",
    "loss.kl": 0,
    "rollout.max_steps": 5,
    "rollout.group_size": GROUP_SIZE,
    "train.tasks_per_batch": BATCH,
    "train.tasks_per_update": BATCH,
    "train.max_staleness": 1,
    "optim.schedule": "constant",
    "env.parallel": 16,
    "env.step_seconds": 5,
    "eval.every": 0,
    "eval.rollouts": 0,
    "run.threads": 1,
    "store.tensorboard": "false",
}
_made = itertools.count()


class FaultyEnv:
    """Every tenth one is faulty, in one of five ways."""

    def __init__(self, env: Env) -> None:
        number = next(_made)
        self._env = env
        self._fault = FAULTS[number // 10 % len(FAULTS)] if number % 10 == 9 else ""

    async def start(self, task: Task) -> Observation:
        self._break("start")
        return await self._env.start(task)

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        self._break("step")
        if self._fault == "hang":
            await asyncio.sleep(60)
            raise TimeoutError("the desktop hangs")
        return await self._env.step(actions)

    async def evaluate(self) -> float:
        self._break("evaluate")
        return math.nan if self._fault == "score" else await self._env.evaluate()

    async def close(self) -> None:
        await self._env.close()

    def _break(self, call: str) -> None:
        if call == self._fault:
            raise RuntimeError(f"the desktop broke in {call}")


class FaultyDesk(FaultyEnv, DeskEnv):
    """A DeskEnv by its type: others cannot play the tasks of Desk."""

    def __init__(self) -> None:
        super().__init__(DeskEnv(224, 168, 0.0))


def use_small_caches() -> None:
    from arpo.models import feature_cache, trainable

    png._cache._limit = CACHE_MIB << 20
    trainable.FeatureCache = lambda _: feature_cache.FeatureCache(CACHE_MIB)  # type: ignore[assignment,misc]


def command(run: Path, more: Mapping[str, object]) -> list[str]:
    values = {**SETTINGS, "run.dir": run, **more}
    program = "import sys, soak; from arpo.cli import main; soak.use_small_caches(); sys.exit(main())"
    return [sys.executable, "-c", program, "train", "desk_fresh", *(f"--{k}={v}" for k, v in values.items())]


def start(words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    paths = os.pathsep.join([str(ROOT / "benchmarks"), str(SUPPORT), *sys.path])
    with log.open("ab") as output:
        environment = os.environ | {"PYTHONPATH": paths}
        return subprocess.Popen(words, stdout=output, stderr=subprocess.STDOUT, env=environment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """When to kill a server and the trainer, and when to end. `clock` returns the time, in the same unit."""

    end: float
    server: float
    trainer: float
    clock: Callable[[Path], float]  # its argument is the run folder


def minutes_since_now() -> Callable[[Path], float]:
    began = time.monotonic()
    return lambda _: (time.monotonic() - began) / 60


def disturbed(folder: Path, plan: Plan) -> tuple[Counter[str], list[list[float]]]:
    """Train under faults. Returns the numbers of kills, and the memory (MiB) of each life of the trainer."""
    sys.path.insert(0, str(SUPPORT))
    import in_process_server

    run, log = folder / "run", folder / "log.txt"
    python = in_process_server.install(folder)
    engine = {"engine.name": "vllm", "engine.replicas": 2, "engine.python": python}
    words = command(run, {**engine, "env.name": "soak:FaultyDesk", "train.tasks": 65_536})
    kills: Counter[str] = Counter()
    due = {"server": plan.server, "trainer": plan.trainer}
    lives: list[list[float]] = [[]]
    trainer = start(words, log)
    try:
        while (now := plan.clock(run)) < plan.end:
            time.sleep(PAUSE)
            assert trainer.poll() is None, f"the trainer ended: {log.read_text()[-2000:]}"
            lives[-1].append(_memory(trainer.pid))
            if now >= due["server"] and (servers := _processes_of(python)):
                os.kill(servers[kills["server"] % len(servers)], signal.SIGKILL)
                kills["server"] += 1
                due["server"] = now + plan.server
            if now >= due["trainer"]:
                trainer.kill()
                trainer.wait()
                kills["trainer"] += 1
                due["trainer"] = now + plan.trainer
                lives.append([])
                trainer = start(words, log)
        trainer.send_signal(signal.SIGINT)
        assert trainer.wait(timeout=600) == INTERRUPTED, log.read_text()[-2000:]
    finally:
        trainer.kill()
        trainer.wait()
    return kills, lives


def _memory(process: int) -> float:
    """Resident memory in MiB."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _processes_of(program: str) -> list[int]:
    """Servers of this program."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if program.encode() in words and b"--served-model-name" in words:
            found.append(int(path.parent.name))
    return sorted(found)


def read(run: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text("utf-8").splitlines()]


def check_groups(run: Path, group_size: int = GROUP_SIZE) -> int:
    """Returns the number of trained groups. Each is trained once, with all of its episodes."""
    numbers = [int(line["group"].split("-")[1]) for line in read(run, "groups.jsonl")]
    assert numbers == list(range(len(numbers))), "a group is missing, or was trained twice or out of order"
    ended = Counter(
        line["episode_id"] for name in ("trajectories.jsonl", "failures.jsonl") for line in read(run, name)
    )
    expected = {f"group-{number}-{episode}" for number in numbers for episode in range(group_size)}
    assert all(ended[name] == 1 for name in expected), "an episode is missing, or was stored twice"
    return len(numbers)


def last_success(run: Path) -> float:
    rates = [line["success"] for line in read(run, "metrics.jsonl") if line.get("success") is not None]
    return fmean(rates[-max(1, len(rates) // 3) :])


def growth(lives: Sequence[Sequence[float]]) -> float | None:
    longest = max(lives, key=len)
    if len(longest) * PAUSE < LONG_LIFE:
        return None
    quarter = len(longest) // 4
    return median(longest[-quarter:]) / median(longest[quarter : 2 * quarter])


def soak(folder: Path, plan: Plan) -> dict[str, Any]:
    kills, lives = disturbed(folder, plan)
    run, quiet = folder / "run", folder / "quiet"
    groups = check_groups(run)
    undisturbed = start(command(quiet, {"train.tasks": groups}), folder / "quiet.txt")
    assert undisturbed.wait() == 0, (folder / "quiet.txt").read_text()[-2000:]
    assert check_groups(quiet) == groups
    rates = [last_success(run), last_success(quiet)]
    difference = rates[0] - rates[1]
    episodes = max(1, groups // 3) * GROUP_SIZE
    noise = math.sqrt(sum(max(rate * (1 - rate), 0.05) for rate in rates) / episodes)
    grown = growth(lives)
    return {
        "benchmark": "soak",
        "kills": dict(kills),
        **_faults(run),
        "groups": groups,
        "success": [round(rate, 3) for rate in rates],
        "difference": round(difference, 3),
        "noise": round(noise, 3),
        "growth": grown and round(grown, 3),
        "passed": abs(difference) <= 3 * noise and (grown is None or grown <= MAX_GROWTH),
    }


def simulated(folder: Path, plan: Plan) -> dict[str, Any]:
    """In simulated minutes: 32 environments, 4 servers, batches of 32 episodes, replay."""
    from simulation.cluster import Cluster
    from simulation.lives import simulate_lives

    cluster = Cluster(
        environments=32,
        replicas=4,
        learner_gpus=4,
        groups=8,
        group_size=4,
        max_staleness=1,
        batches=1000,  # more than there will be
        replay=True,
    )
    kills = simulate_lives(
        cluster,
        folder,
        FaultyEnv,
        end=60 * plan.end,
        server=60 * plan.server,
        trainer=60 * plan.trainer,
    )
    run = folder / "run"
    groups = check_groups(run, cluster.group_size)
    return {
        "benchmark": "soak, simulated",
        "kills": dict(kills),
        **_faults(run),
        "groups": groups,
        "staleness_max": max(line.get("staleness_max", 0.0) for line in read(run, "metrics.jsonl")),
        "passed": True,
    }


def _faults(run: Path) -> dict[str, int]:
    """Calls that failed, and episodes that failed in every attempt."""
    faults = sum(bool(line.get("fault")) for line in read(run, "calls.jsonl"))
    return {"faults": faults, "failures": len(read(run, "failures.jsonl"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--server-minutes", type=float, default=1.0, help="between two kills of a server")
    parser.add_argument(
        "--trainer-minutes", type=float, default=10.0, help="between two kills of the trainer"
    )
    parser.add_argument("--simulated", action="store_true", help="simulated minutes, without a model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        plan = Plan(
            end=options.minutes,
            server=options.server_minutes,
            trainer=options.trainer_minutes,
            clock=minutes_since_now(),
        )
        result = (simulated if options.simulated else soak)(Path(name), plan)
    print(json.dumps(result))
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
