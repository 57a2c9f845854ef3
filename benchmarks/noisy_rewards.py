"""A judge with known errors on Desk: true rewards, raw noisy rewards, and noisy rewards with an audit.

    python benchmarks/noisy_rewards.py --seeds 5 --out runs/noisy

The judge is planted: it knows the evaluator's score and errs on 20% of the failures and 10% of the successes,
independently by episode. Each run trains with the recipe `paper` in this process: 4,096 episodes in
groups of 8. Config keys apply to all runs.

- true: rewards of the evaluator
- raw: `reward.judge` = 1; no task has an evaluator, so nothing is corrected
- corrected: `reward.judge` = 1; every fourth task keeps its evaluator for the audit. Its reward is the
  verdict all the same, but probable false positives of all tasks stay out of replay

If it is interrupted, run the same command again. Prints one JSON line: mean success by the true evaluator
before and after training in percent, by method and task set, and the share of the gain of true rewards on
training tasks.

Predictions before the first series (training tasks, 5 seeds): true +35 points; raw keeps 65% (50 to 85) of
that gain, corrected 75% (60 to 95). The correction cancels within a group, so the whole difference comes
from replay, and is largest on tasks with few successes. The goal is 80%, and more than raw. No run of
corrected has an alarm: the errors are constant.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from arpo.config import Config, ServerConfig
from arpo.config.recipe import load_config
from arpo.envs.desk.env import DeskEnv
from arpo.interrupts import INTERRUPTED
from arpo.prompts.judge_question import Question
from arpo.storage.judgements import Vote, VoteLog
from arpo.tasks.lists import load_tasks
from arpo.training import judged_scores
from arpo.training.trainer import run_training
from arpo.types import Task, Trajectory

FALSE_POSITIVES, FALSE_NEGATIVES = 0.2, 0.1
METHODS = ("true", "raw", "corrected")
AUDITED = 4  # every fourth task
SOURCE = "desk:pool"  # of the tasks of the recipe


class PlantedJudge:
    """In place of `Judge`: the verdict is the evaluator's, with errors that depend on the episode's name."""

    seed = 0

    def __init__(self, server: ServerConfig, log: VoteLog) -> None:
        self.model, self._log = "planted", log

    async def start(self) -> Sequence[str]:
        return ()

    async def close(self) -> None: ...

    async def ask(self, question: Question, count: int) -> list[Vote]:
        episode = question.episode
        success = await true_score(episode) >= 0.5
        rate = FALSE_NEGATIVES if success else FALSE_POSITIVES
        verdict = success ^ (Random(f"{self.seed}/{episode.episode_id}").random() < rate)
        vote = Vote(
            episode=episode.episode_id,
            final=episode.final.sha256,
            model=self.model,
            mark=question.mark,
            planted=False,
            number=0,
            success=verdict,
            reason="planted",
        )
        self._log.add(vote)
        return [vote]


async def true_score(episode: Trajectory) -> float:
    """Desk does the actions of the episode again, and the task's own evaluator scores them."""
    env = DeskEnv(*episode.final.size)
    await env.start(_tasks()[episode.task_id])
    for turn in episode.turns:
        if not turn.error:
            await env.step(turn.actions)
    return await env.evaluate()


_known: dict[str, Task] = {}


def _tasks() -> dict[str, Task]:
    if not _known:
        _known.update({task.id: task for task in load_tasks(SOURCE)})
    return _known


def hide_evaluators(tasks: Sequence[Task], path: Path, audited: int) -> None:
    """Write a task list in which only every `audited`-th task has an evaluator; 0: none."""
    entries = [
        asdict(task if audited and not index % audited else replace(task, evaluator={"func": "none"}))
        for index, task in enumerate(tasks)
    ]
    path.write_text(json.dumps(entries), "utf-8")


def config_of(out: Path, method: str, seed: int, settings: Sequence[str]) -> Config:
    own = [f"--run.dir={out / method / f'seed-{seed}'}", f"--run.seed={seed}"]
    config = load_config("paper", [*own, "--tasks.overall=", *settings])
    if method == "true":
        return config
    path = out / f"{method}.json"
    hide_evaluators(load_tasks(config.tasks.train), path, AUDITED if method == "corrected" else 0)
    judged = ["--reward.judge=1", "--server.model=planted"]
    return load_config("paper", [*own, "--tasks.overall=", *settings, *judged, f"--tasks.train={path}"])


def train(out: Path, method: str, seed: int, settings: Sequence[str]) -> dict[str, Any]:
    """The success rates and the alarms of a run."""
    config = config_of(out, method, seed, settings)
    folder = Path(config.run.dir)
    if not (folder / "summary.json").exists():
        PlantedJudge.seed = seed
        if run_training(config) == INTERRUPTED:
            sys.exit(INTERRUPTED)
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    return {"success": summary["success"], "alarms": sum("judge_alarm" in line for line in metrics)}


def result(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The line of results. The share of a gain is null if true rewards gain nothing."""

    def mean(method: str, landmark: str, tasks: str) -> float:
        return 100 * fmean(run["success"][landmark][tasks] for run in runs[method])

    sets = [name for name, rate in runs["true"][0]["success"]["base"].items() if rate is not None]
    gains = {name: mean(name, "final", "train") - mean(name, "base", "train") for name in METHODS}
    return {
        "benchmark": "noisy_rewards",
        "seeds": len(runs["true"]),
        "success": {
            name: {
                one: [round(mean(name, landmark, one), 1) for landmark in ("base", "final")] for one in sets
            }
            for name in METHODS
        },
        "share_of_gain": {
            name: round(gains[name] / gains["true"], 2) if gains["true"] > 0 else None for name in METHODS
        },
        "runs_with_alarms": {name: sum(run["alarms"] > 0 for run in runs[name]) for name in METHODS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--seeds", type=int, default=5, help="random seeds per method (%(default)s)")
    options, settings = parser.parse_known_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    judged_scores.Judge = PlantedJudge  # type: ignore[assignment,misc]
    runs = {
        method: [train(out, method, seed, settings) for seed in range(options.seeds)] for method in METHODS
    }
    print(json.dumps(result(runs)))


if __name__ == "__main__":
    main()
