"""Episodes a second on Desk, and who takes the time: environments, engine, learner.

The same batches are played one environment at a time and `--parallel` at a time, and trained on; then, with
`--processes`, so many processes do the latter side by side, as runs that share a GPU do. One JSON line:

    python benchmarks/throughput.py --parallel 64 --batches 3 [--processes 16] [--section.key VALUE …]

On a GPU start NVIDIA's MPS first (nvidia-cuda-mps-control -d): without it processes take turns on it.
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

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command does, before torch is loaded

import torch

from arpo.algorithms.samples import samples_of
from arpo.config import Config
from arpo.envs.desk import env as desk
from arpo.evaluation.evaluate import load_sets
from arpo.learner.base import Batch
from arpo.recipe import load_config
from arpo.training.build import assemble, open_learner


class Clock:
    """Seconds by whom they were spent on. A GPU is waited for, so that each bears its own."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def of(self, who: str) -> Any:
        start = time.perf_counter()
        yield
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[who] += time.perf_counter() - start

    def watch(self, owner: Any, names: Sequence[str], who: str) -> None:
        """Count what these functions of the owner take; none of them waits for another."""
        for name in names:
            setattr(owner, name, self._counted(getattr(owner, name), who))

    def _counted(self, function: Callable[..., Any], who: str) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            with self.of(who):
                return function(*arguments, **named)

        return counted


def measure(config: Config, batches: int) -> dict[str, float]:
    """The first batch warms up and is not counted."""
    ensemble, clock = assemble(config), Clock()
    learner, tasks = open_learner(ensemble, config), load_sets(config)["train"]
    engine: Any = ensemble.scheduler.agent.engine
    clock.watch(engine, ("_prefill", "_decode", "_postprocess"), "engine")
    clock.watch(desk, ("set_up", "act", "task_score"), "environment")
    clock.watch(desk.DeskEnv, ("_look",), "environment")
    size, rollout = config.train.tasks_per_batch, config.rollout

    async def run() -> tuple[int, float]:
        episodes, began = 0, 0.0
        for number in range(batches + 1):
            if number == 1:
                clock.seconds.clear()
                episodes, began = 0, time.perf_counter()
            chosen = [(place, tasks[(number * size + place) % len(tasks)]) for place in range(size)]
            groups = await ensemble.scheduler.run(f"batch{number}", chosen, lambda *_: None)
            episodes += sum(len(group.trajectories) for group in groups)
            with clock.of("learner"):
                updates, _ = samples_of(
                    groups,
                    config.loss,
                    tasks_per_update=config.train.tasks_per_update,
                    token_budget=rollout.max_steps * rollout.max_answer_tokens,
                    success=config.replay.threshold,
                )
                await learner.train(Batch(updates=updates))
                await engine.load(learner.weights())
        return episodes, time.perf_counter() - began

    episodes, seconds = asyncio.run(run())
    shares = {who: round(clock.seconds[who] / seconds, 3) for who in ("environment", "engine", "learner")}
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
    parser.add_argument("--processes", type=int, default=0, help="this many side by side, besides")
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)  # one of the processes
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
