"""A judge with known errors on Desk: true rewards, raw noisy rewards, and noisy rewards with an audit.

    python benchmarks/noisy_rewards.py --seeds 5 --jobs 8 --out runs/noisy

The judge is planted: it knows the evaluator's score and errs on 20% of the failures and 10% of the successes,
independently by episode. Each run trains with the recipe `paper`: 4,096 episodes in groups of 8. Then its
model plays each training task 8 times and each held-out task 4 times, scored by the evaluators. Config keys
apply to all runs and evaluations.

- true: rewards of the evaluator
- raw: `reward.judge` = 1; no task has an evaluator, so nothing is corrected
- corrected: `reward.judge` = 0.25; every fourth task keeps its evaluator. So its reward is a quarter verdict,
  three quarters evaluator, and its episodes are the audit: it measures the error rates, and probable false
  positives of all tasks stay out of replay
- served: as raw, with a real judge in place of the planted one (`--methods true,served`)

A small judge for Desk, its precision and recall on goals that it never judged, and training with it alone:

    python -m tools.pretrain --last-stage --dialect judge --out judge
    arpo serve judge/model --recipe paper --engine.cache_gigabytes 4      # prints its URL
    arpo collect paper --tasks.train desk:families/test --train.epochs 1 --run.dir runs/families
    arpo judge runs/families --server.endpoints URL --server.model model --votes 3 --json
    python benchmarks/noisy_rewards.py --methods true,served --seeds 3 --out runs/served \
        --tasks desk:families/validation --heldout desk:families/test \
        --server.endpoints URL --server.model model

On a GPU, start NVIDIA's MPS first. If it is interrupted, run the same command again. Prints one JSON line:
mean success by the true evaluator in percent, by model and task set, the share of the gain of true rewards
on training tasks, and each run, with its number of episodes without a verdict.

Predictions before the first series (training tasks, 5 seeds): true +35 points, +25 with `--train.epochs 2`;
raw keeps 65% (50 to 85) of that gain, corrected 80% (65 to 100). The correction of a verdict cancels within a
group, so the difference comes from the audited tasks and from replay. The goal is 80%, and more than raw. No
run of corrected has an alarm: the errors are constant. The small judge: precision 88% (75 to 95) and recall
88% (75 to 97) on families that it never judged; training with it alone keeps 75% (40 to 95) of the gain. With
`--train.epochs 1`, which is the series on two cores: true +20 points, and the same share of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
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
from arpo.storage.run_folder import FAILURES, METRICS
from arpo.tasks.lists import load_tasks
from arpo.training import judged_scores
from arpo.training.trainer import run_training
from arpo.types import Task, Trajectory

FALSE_POSITIVES, FALSE_NEGATIVES = 0.2, 0.1
CORRECTED = "corrected"
METHODS = ("true", "raw", CORRECTED)
PLANTED = ("raw", CORRECTED)
AUDITED, WEIGHT = 4, 0.25  # of "corrected": every fourth task, and the verdict's share of its reward
BASE = "base"  # the model before training, among the results


class PlantedJudge:
    """In place of `Judge`: the verdict is the evaluator's, with errors that depend on the episode's name."""

    seed = 0
    tasks: Mapping[str, Task] = {}

    def __init__(self, server: ServerConfig, log: VoteLog) -> None:
        self.model, self._log = "planted", log

    async def start(self) -> Sequence[str]:
        return ()

    async def close(self) -> None: ...

    async def ask(self, question: Question, count: int) -> list[Vote]:
        episode = question.episode
        success = await true_score(self.tasks[episode.task_id], episode) >= 0.5
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


async def true_score(task: Task, episode: Trajectory) -> float:
    """Desk does the actions of the episode again, and the task's own evaluator scores them."""
    env = DeskEnv(*episode.final.size)
    await env.start(task)
    for turn in episode.turns:
        if not turn.error:
            await env.step(turn.actions)
    return await env.evaluate()


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
        judge = [f"--reward.judge={WEIGHT if method == CORRECTED else 1}"]
        judge += ["--server.model=planted"] if method in PLANTED else []
        tasks = f"--tasks.train={self.list_of(method)}"
        return load_config("paper", [*self.settings, *own, *judge, tasks])

    def list_of(self, method: str) -> Path:
        """The training tasks, most or all without evaluators."""
        return self.out / f"{method}.json"

    def evaluation(self, model: str, seed: int) -> Config:
        sets = [f"--tasks.train={self.tasks}", f"--tasks.heldout={self.heldout}", "--tasks.overall="]
        own = [f"--run.seed={seed}", *([f"--model.path={model}"] if model else [])]
        rollouts = ["--eval.rollouts=8", "--eval.heldout_rollouts=4"]
        return load_config("paper", [*rollouts, *self.settings, *sets, *own])


def train(series: Series, method: str, seed: int) -> dict[str, Any]:
    """The success rates and faults of a run. `method` = "base" trains nothing."""
    folder = series.out / method / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    scores = folder / "scores.json"
    with (folder / "screen.log").open("a") as log:
        if not scores.exists():
            if method != BASE:
                # A worker process may have trained with another method before.
                judged_scores.Judge = PlantedJudge if method in PLANTED else Judge  # type: ignore[assignment,misc]
                PlantedJudge.seed = seed
                PlantedJudge.tasks = {task.id: task for task in load_tasks(series.tasks)}
                if run_training(series.training(method, seed), open_display(log)) == INTERRUPTED:
                    sys.exit(INTERRUPTED)
            model = "" if method == BASE else str(folder / "model")
            measure(series.evaluation(model, seed), open_display(log), scores)
    rates = json.loads(scores.read_text("utf-8"))
    sets = [name for name, found in rates.items() if isinstance(found, dict) and found.get("episodes")]
    found = {"success": {name: rates[name]["success"] for name in sets}, "alarms": 0, "without_verdict": 0}
    if method != BASE:
        metrics, failures = (
            [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]
            for name in (METRICS, FAILURES)
        )
        found["alarms"] = sum("judge_alarm" in line for line in metrics)
        found["without_verdict"] = sum(line["where"] == "judge" for line in failures)
    return found


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
    methods = options.methods.split(",")
    out = options.out.resolve()
    series = Series(out=out, tasks=options.tasks, heldout=options.heldout, settings=settings)
    prepare(series, methods)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        try:
            started = {
                (method, seed): pool.submit(train, series, method, seed)
                for seed in range(options.seeds)
                for method in (BASE, *methods)
            }
            runs = {
                method: [started[method, seed].result() for seed in range(options.seeds)]
                for method in (BASE, *methods)
            }
        except BaseException:  # an interrupt too: start no more runs
            pool.shutdown(cancel_futures=True)
            raise
    print(json.dumps(result(runs)))


def prepare(series: Series, methods: Sequence[str]) -> None:
    """Write the task lists. Refuses the folder of another series."""
    series.out.mkdir(parents=True, exist_ok=True)
    path, text = series.out / "series.json", json.dumps([series.tasks, series.heldout, list(series.settings)])
    if path.exists() and path.read_text("utf-8") != text:
        sys.exit(f"{path}: another series: choose another --out")
    write_atomically(path, text)
    for method in methods:
        audited = AUDITED if method == CORRECTED else 0
        hide_evaluators(load_tasks(series.tasks), series.list_of(method), audited)


if __name__ == "__main__":
    main()
