"""Lock step against asynchronous training, with the waiting times of real desktops and of a 7B model.

The loop, the scheduler, the pool and the store are those of `arpo train`. Environments, engine and learner
only wait, 60 times shorter than in reality: virtual machines boot in 30 to 60 s, a step takes about 3 s
(log-normal), an evaluation 5 s, and 2% of the episodes hang until a timeout. The engine has four servers; a
turn takes 3 s, and 1 s more for every four requests on the same server (7 s with 16). The learner takes 2 s
per episode (four GPUs), new weights take 10 s. 64 environments, 8 groups of 8 episodes per batch.

Prints one JSON line. `ratio` is the rate of asynchronous training divided by the rate of lock step: episodes
per hour, without evaluations. `used` is the share of environment time in use, without the first batch and
the last ones, in which no new tasks are left.

    python benchmarks/asynchrony.py [--max-staleness 2] [--batches 8]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any
from unittest import mock

from simulation.waiting_learner import WaitingLearner, work_in_loop

from arpo.actions import Action
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.engines.base import Weights
from arpo.engines.factory import OpenedEngine
from arpo.learner.base import Batch
from arpo.models.loading import load_renderer
from arpo.prompts.rendering import Renderer
from arpo.reporting.display import Display
from arpo.storage.run_folder import TIMING, RunFolder
from arpo.testing import screenshot
from arpo.training.trainer import Trainer
from arpo.types import Completion, Observation, Prompt, Sampling, StepResult, Task

SCALE = 60.0  # times shorter than in reality
SERVERS = 4
SECONDS_PER_EPISODE, LOAD_SECONDS = 2.0, 10.0  # of the learner; of new weights
STEP_TIMEOUT = 60.0
HANGS = 0.02
TASKS = 8
STAGES = ("rollout", "wait", "learn", "save")


async def wait(seconds: float) -> None:
    await asyncio.sleep(seconds / SCALE)


class VirtualMachine:
    """An environment that only waits."""

    created = 0

    async def start(self, task: Task) -> Observation:
        VirtualMachine.created += 1
        self._random = Random(VirtualMachine.created)
        self._hangs_at = self._random.randrange(1, 8) if self._random.random() < HANGS else 0
        self._steps = 0
        await wait(self._random.uniform(30, 60))
        return self._observe()

    async def step(self, actions: tuple[Action, ...]) -> StepResult:
        self._steps += 1
        hangs = self._steps == self._hangs_at
        await wait(10 * STEP_TIMEOUT if hangs else self._random.lognormvariate(math.log(3), 0.5))
        return StepResult(observation=self._observe())

    async def evaluate(self) -> float:
        await wait(5)
        return float(self._random.random() < 0.5)

    async def close(self) -> None: ...

    def _observe(self) -> Observation:
        return Observation(screenshot=screenshot(self._steps))


class WaitingEngine:
    """Answers after a time that depends on the load. An episode has 3 to 15 turns, 9 in the mean."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._version = 0
        self._requests = 0
        self._turns: Counter[str] = Counter()

    async def start(self) -> Sequence[str]:
        return ()

    async def close(self) -> None: ...

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        version, episode = self._version, prompt.episode_id
        self._requests += 1
        try:
            await wait(3 + 4 * self._requests / (16 * SERVERS))
        finally:
            self._requests -= 1
        self._turns[episode] += 1
        last = self._turns[episode] >= Random(episode).randint(3, 15)
        text = "Action: finished()" if last else "Action: wait()"
        tokens = (*self._renderer.encode(text), self._renderer.end_of_turn_id)
        return Completion(
            token_ids=tokens,
            logprobs=(-0.5,) * len(tokens),
            text=text,
            finish="stop",
            versions=(version,) * len(tokens),
        )

    async def release(self, episode_id: str) -> None:
        self._turns.pop(episode_id, None)

    async def load(self, weights: Weights) -> None:
        await wait(LOAD_SECONDS)
        self._version = weights.version


class SlowLearner(WaitingLearner):
    """All episodes of a batch cost time, also those without signal."""

    def __init__(self, episodes: int) -> None:
        super().__init__(logprob=0.0)
        self._episodes = episodes

    async def work(self, batch: Batch) -> None:
        await wait(SECONDS_PER_EPISODE * self._episodes)


def settings(folder: Path, max_staleness: int, batches: int) -> Config:
    tasks = {f"pool-{number:03}": {"successes": 0, "rollouts": 0} for number in range(1, TASKS + 1)}
    (folder / "tasks.json").write_text(json.dumps({"source": "desk:pool", "tasks": tasks}), "utf-8")
    seconds = STEP_TIMEOUT / SCALE
    values = {
        "run.dir": folder / "run",
        "tasks.train": folder / "tasks.json",
        "tasks.heldout": "",
        "env.name": "asynchrony:VirtualMachine",
        "env.parallel": 64,
        "env.step_seconds": seconds,
        "env.start_seconds": 2 * seconds,
        "env.quarantine_after": 1000,
        "rollout.group_size": 8,
        "rollout.max_steps": 15,
        "train.epochs": batches,
        "train.tasks_per_batch": TASKS,
        "train.tasks_per_update": TASKS,
        "train.max_staleness": max_staleness,
        "replay.enabled": "false",
        "loss.kl": 0,
        "eval.every": 0,
        "eval.rollouts": 1,
        "store.tensorboard": "false",
    }
    return load_config("desk", [f"--{key}={value}" for key, value in values.items()])


def measure(max_staleness: int, batches: int) -> dict[str, float]:
    """Train, and return episodes per hour (of real time) and the share of environment time in use."""
    VirtualMachine.created = 0
    with tempfile.TemporaryDirectory() as name:
        config = settings(Path(name), max_staleness, batches)
        renderer = load_renderer(config.model)
        opened = OpenedEngine(engine=WaitingEngine(renderer), renderer=renderer, model=None)
        learner = SlowLearner(TASKS * config.rollout.group_size)
        store = RunFolder(Path(config.run.dir))
        with (
            mock.patch("arpo.rollout.player.open_engine", lambda *_, **__: opened),
            mock.patch("arpo.training.run.open_learner", lambda *_: learner),
            mock.patch("arpo.training.run.Run.work", work_in_loop),
        ):
            trainer = Trainer(config, store, Display())
            assert asyncio.run(trainer.train())
        timing = list(store.read_log(TIMING))
        store.close()
    return _rates(timing, trainer, max_staleness)


def _rates(timing: Sequence[dict[str, Any]], trainer: Trainer, max_staleness: int) -> dict[str, float]:
    seconds = SCALE * sum(record.get(stage, 0.0) for record in timing for stage in STAGES)
    steady = timing[1 : -1 - max_staleness]
    progress = trainer.run.progress
    return {
        "episodes_per_hour": round(3600 * progress.episodes / seconds),
        "used": round(1 - fmean(record["env_idle"] for record in steady), 3),
        "learner_busy": round(SCALE * sum(record["learn"] for record in timing) / seconds, 3),
        "episodes": progress.episodes,
        "failures": progress.failures,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--max-staleness", type=int, default=2)
    parser.add_argument("--batches", type=int, default=8)
    options = parser.parse_args()
    lock_step = measure(0, options.batches)
    asynchronous = measure(options.max_staleness, options.batches)
    print(
        json.dumps(
            {
                "benchmark": "asynchrony",
                "ratio": round(asynchronous["episodes_per_hour"] / lock_step["episodes_per_hour"], 2),
                "lock_step": lock_step,
                "asynchronous": {"max_staleness": options.max_staleness, **asynchronous},
            }
        )
    )


if __name__ == "__main__":
    main()
