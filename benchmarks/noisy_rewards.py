"""A judge with known errors on Desk: true rewards, raw noisy rewards, and noisy rewards with an audit.

    python benchmarks/noisy_rewards.py --seeds 5 --jobs 8 --out runs/noisy

The judge is planted: it knows the evaluator's score and errs on 20% of the failures and 10% of the successes,
independently by episode. Each run trains with the recipe `paper`: 4,096 episodes in groups of 8. Then its
model plays each training task 8 times and each held-out task 4 times, scored by the evaluators. Config keys
apply to all runs and evaluations.

- true: rewards of the evaluator
- raw: `reward.judge` = 1; no task has an evaluator, so nothing is corrected
- corrected: `reward.judge` = 1; every fourth task keeps its evaluator for the audit. Its reward is the
  verdict all the same, but probable false positives of all tasks stay out of replay
- served: as raw, with a real judge in place of the planted one (`--methods true,served`)

A small judge for Desk, its precision and recall on goals that it never judged, and training with it alone:

    python -m tools.pretrain --last-stage --dialect judge --out judge
    arpo serve judge/model --recipe paper      # prints its URL
    arpo collect paper --tasks.train desk:families/test --train.epochs 1 --run.dir runs/families
    arpo judge runs/families --server.endpoints URL --server.model judge --votes 3 --json
    python benchmarks/noisy_rewards.py --methods true,served --seeds 3 --out runs/served \
        --tasks desk:families/validation --heldout desk:families/test \
        --server.endpoints URL --server.model judge

On a GPU, start NVIDIA's MPS first. If it is interrupted, run the same command again. Prints one JSON line:
mean success by the true evaluator in percent, by model and task set, the share of the gain of true rewards
on training tasks, and each run.

Predictions before the first series (training tasks, 5 seeds): true +35 points; raw keeps 65% (50 to 85) of
that gain, corrected 75% (60 to 95). The correction cancels within a group, so the whole difference comes
from replay, and is largest on tasks with few successes. The goal is 80%, and more than raw. No run of
corrected has an alarm: the errors are constant. The small judge: precision 88% (75 to 95) and recall 88% (75
to 97) on families that it never judged; training with it alone keeps 75% (40 to 95) of the gain.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from arpo.config import Config, ServerConfig
from arpo.config.recipe import load_config
from arpo.envs.desk.env import DeskEnv
from arpo.evaluation.evaluate import measure
from arpo.evaluation.judge import Judge
from arpo.interrupts import INTERRUPTED
from arpo.prompts.judge_question import Question
from arpo.reporting.display import open_display
from arpo.storage.files import write_atomically
from arpo.storage.judgements import Vote, VoteLog
from arpo.tasks.lists import load_tasks
from arpo.training import judged_scores
from arpo.training.trainer import run_training
from arpo.types import Task, Trajectory

FALSE_POSITIVES, FALSE_NEGATIVES = 0.2, 0.1
METHODS = ("true", "raw", "corrected")
PLANTED = ("raw", "corrected")
AUDITED = 4  # every fourth task
BASE = "base"  # the model before training, among the results


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
        _known.update({task.id: task for task in load_tasks("desk:pool")})
    return _known


def hide_evaluators(tasks: Sequence[Task], path: Path, audited: int) -> None:
    """Write a task list in which only every `audited`-th task has an evaluator; 0: none."""
    entries = [
        asdict(task if audited and not index % audited else replace(task, evaluator={"func": "none"}))
        for index, task in enumerate(tasks)
    ]
    write_atomically(path, json.dumps(entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """What all runs have in common. `tasks` and `heldout` are sources of tasks with evaluators."""

    out: Path
    tasks: str
    heldout: str
    settings: Sequence[str]

    def training(self, method: str, seed: int) -> Config:
        own = [f"--run.dir={self.out / method / f'seed-{seed}'}", f"--run.seed={seed}", "--eval.rollouts=0"]
        own += ["--tasks.overall=", "--tasks.heldout="]
        if method == "true":
            return load_config("paper", [f"--tasks.train={self.tasks}", *self.settings, *own])
        path = self.out / f"{method}.json"
        hide_evaluators(load_tasks(self.tasks), path, AUDITED if method == "corrected" else 0)
        judge = ["--server.model=planted"] if method in PLANTED else []
        return load_config(
            "paper", [*self.settings, *own, "--reward.judge=1", *judge, f"--tasks.train={path}"]
        )

    def evaluation(self, model: str, seed: int) -> Config:
        own = [f"--model.path={model}", f"--run.seed={seed}", "--eval.rollouts=8"]
        sets = [f"--tasks.train={self.tasks}", f"--tasks.heldout={self.heldout}", "--tasks.overall="]
        return load_config("paper", [*own, "--eval.heldout_rollouts=4", *sets, *self.settings])


def train(series: Series, method: str, seed: int) -> dict[str, Any]:
    """The success rates and the number of alarms of a run. `method` = "base" trains nothing."""
    folder = series.out / method / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "screen.log").open("a") as log:
        if method != BASE and not (folder / "summary.json").exists():
            judged_scores.Judge = PlantedJudge if method in PLANTED else Judge  # type: ignore[assignment,misc]
            PlantedJudge.seed = seed
            if run_training(series.training(method, seed), open_display(log)) == INTERRUPTED:
                sys.exit(INTERRUPTED)
        scores = folder / "scores.json"
        if not scores.exists():
            model = "base" if method == BASE else str(folder / "model")
            measure(series.evaluation(model, seed), open_display(log), scores)
    rates = json.loads(scores.read_text("utf-8"))
    sets = [name for name, found in rates.items() if isinstance(found, dict) and "success" in found]
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines() if method != BASE else []
    return {
        "success": {name: rates[name]["success"] for name in sets},
        "alarms": sum("judge_alarm" in json.loads(line) for line in lines),
    }


def result(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The line of results. The share of a gain is null if true rewards gain nothing."""

    def mean(method: str, tasks: str) -> float:
        return 100 * fmean(run["success"][tasks] for run in runs[method])

    gains = {name: mean(name, "train") - mean(BASE, "train") for name in runs if name != BASE}
    return {
        "benchmark": "noisy_rewards",
        "seeds": len(runs[BASE]),
        "success": {
            name: {tasks: round(mean(name, tasks), 1) for tasks in runs[BASE][0]["success"]} for name in runs
        },
        "share_of_gain": {
            name: round(gains[name] / gains["true"], 2) if gains.get("true", 0) > 0 else None
            for name in gains
        },
        "runs_with_alarms": {name: sum(run["alarms"] > 0 for run in runs[name]) for name in gains},
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--seeds", type=int, default=5, help="random seeds per method (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (%(default)s)")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas (%(default)s)")
    parser.add_argument("--tasks", default="desk:128", help="training tasks (%(default)s)")
    parser.add_argument("--heldout", default="desk:heldout", help="held-out tasks (%(default)s)")
    options, settings = parser.parse_known_args()
    series = Series(
        out=options.out.resolve(), tasks=options.tasks, heldout=options.heldout, settings=settings
    )
    series.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        started = {
            method: [pool.submit(train, series, method, seed) for seed in range(options.seeds)]
            for method in (BASE, *options.methods.split(","))
        }
        runs = {method: [each.result() for each in futures] for method, futures in started.items()}
    print(json.dumps(result(runs)))


if __name__ == "__main__":
    main()
