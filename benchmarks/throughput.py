"""Episodes per second on Desk, and the time share of environments, engine and learner.

Plays and trains on the same batches with one environment at a time and with `--parallel` environments. With
`--processes`, that many processes then do the latter side by side, like runs that share a GPU. One JSON line:

    python benchmarks/throughput.py --parallel 64 --batches 3 [--processes 16] [--section.key VALUE …]

On a GPU, start NVIDIA's MPS first (nvidia-cuda-mps-control -d): without it, processes take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the arpo command does, before torch is loaded

import torch

from arpo.algorithms.samples import build_updates
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.envs.desk import env as desk
from arpo.learner.base import Batch
from arpo.rollout.player import open_player
from arpo.tasks.sets import load_sets
from arpo.training.run import open_learner


class Clock:
    """Seconds by component. Waits for the GPU, so that each component is charged for its own work."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def measure(self, component: str) -> Any:
        start = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[component] += time.perf_counter() - start

    def watch(self, owner: Any, names: Sequence[str], component: str) -> None:
        """Charge the time in these functions to the component. They must not wait for each other."""
        for name in names:
            setattr(owner, name, self._timed(getattr(owner, name), component))

    def _timed(self, function: Callable[..., Any], component: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            with self.measure(component):
                return function(*arguments, **named)

        return timed


def measure(config: Config, batches: int) -> dict[str, float]:
    """The first batch warms up and does not count."""
    player, clock = open_player(config), Clock()
    learner, tasks = open_learner(player, config), load_sets(config)["train"]
    engine: Any = player.scheduler.agent.engine
    clock.watch(engine, ("_prefill", "_decode", "_postprocess"), "engine")
    clock.watch(desk, ("set_up", "act", "task_score"), "environment")
    clock.watch(desk.DeskEnv, ("_observe",), "environment")
    size, rollout = config.train.tasks_per_batch, config.rollout

    async def run() -> tuple[int, float]:
        episodes, began = 0, 0.0
        for number in range(batches + 1):
            if number == 1:
                clock.seconds.clear()
                episodes, began = 0, time.perf_counter()
            chosen = [(index, tasks[(number * size + index) % len(tasks)]) for index in range(size)]
            groups = await player.scheduler.run(f"batch-{number + 1}", chosen, lambda *_: None)
            episodes += sum(len(group.trajectories) for group in groups)
            with clock.measure("learner"):
                updates = build_updates(
                    groups,
                    config.loss,
                    tasks_per_update=config.train.tasks_per_update,
                    token_budget=rollout.max_steps * rollout.max_answer_tokens,
                )
                learner.train(Batch(updates=tuple(map(tuple, updates))))
                await engine.load(learner.weights())
        return episodes, time.perf_counter() - began

    episodes, seconds = asyncio.run(run())
    shares = {name: round(clock.seconds[name] / seconds, 3) for name in ("environment", "engine", "learner")}
    playing = seconds - clock.seconds["learner"]
    return {
        "episodes_per_second": episodes / seconds,
        "played_per_second": episodes / playing,
        **shares,
        "rest": round(1 - sum(shares.values()), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--parallel", type=int, default=64)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument(
        "--processes", type=int, default=0, help="also measure this many processes side by side"
    )
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)  # set in the child processes
    options, settings = parser.parse_known_args()
    config = load_config(options.recipe, settings)
    many = replace(config, env=replace(config.env, parallel=options.parallel))
    together = measure(many, options.batches)
    if options.only:
        print(json.dumps(together))
        return
    alone = measure(replace(config, env=replace(config.env, parallel=1)), 1)
    result: dict[str, Any] = {
        "benchmark": "throughput",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "parallel": options.parallel,
        "together": together,
        "one_at_a_time": alone,
        "ratio": together["played_per_second"] / alone["played_per_second"],
    }
    if options.processes:
        command = [sys.executable, __file__, "--only", *sys.argv[1:]]
        started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(options.processes)]
        rates = [json.loads(process.communicate()[0])["episodes_per_second"] for process in started]
        result["processes"] = {"count": options.processes, "episodes_per_second": sum(rates)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
