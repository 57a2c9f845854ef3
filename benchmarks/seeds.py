"""Tasks that the base model never solves: GRPO, ARPO, ARPO with seeds of a teacher, SFT, and SFT then GRPO.

    python benchmarks/seeds.py --seeds 5 --jobs 10 --out runs/seeds

1. `arpo screen` plays each task of desk:pool 16 times with the base model. Of the tasks with 0 successes that
   Desk's solver can solve, 64 are drawn for training and 64 others are held out.
2. `arpo collect` records the solver (`demonstrator.py`) on the training tasks, twice each.
3. `arpo compare` trains with the recipe `paper`: 2,048 episodes in groups of 8, evaluated with 8 episodes per
   training task and 4 per held-out task. The teacher's episodes are `replay.seeds` of "seeded" and
   `offline.source` of "sft" (32 updates, as many as the others). "sft_grpo" is GRPO from the model of "sft"
   with the same random seed.

On a GPU, start NVIDIA's MPS first. Config keys apply to all runs. If it is interrupted, run the same command
again. Prints one JSON line: success rates in percent by method and task set, and the differences to ARPO in
points, with 95% intervals over random seeds and tasks.

Predictions before the first series, after a trial with two tasks; on training and held-out tasks: base model
1 and 1 (0 by selection, in other episodes), GRPO 25 and 20, ARPO 32 and 22, seeded 65 and 45, SFT 60 and 50,
SFT then GRPO 75 and 60. Seeded minus ARPO: +33 (+15 to +50) on training tasks, +23 (+5 to +40) on held-out
ones. The goal is +15 on training tasks. Most of these tasks have long solutions, in which the base model
nearly always makes one of its random faults. A few successes teach to avoid these faults on all tasks. So
plain GRPO starts late but does not stay at 0, and SFT on the same demonstrations may be as good as seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from demonstrator import answers

from arpo.config import RolloutConfig
from arpo.tasks.lists import is_shipped, load_tasks
from arpo.tasks.screened import Count, format_selection
from arpo.types import Task

BASE = "paper"
METHODS = ("grpo", "arpo", "seeded", "sft")
AFTER_SFT = "sft_grpo"
Settings = Sequence[str]


def choose(
    report: Mapping[str, Any], tasks: Sequence[Task], number: int, max_steps: int
) -> tuple[dict[str, Count], dict[str, Count]]:
    """Training and held-out tasks: `number` each of those that were never solved, but that the solver solves.

    `report` is the one of `arpo screen`.
    """
    never = {name: row for name, row in report["tasks"].items() if row["rollouts"] and not row["successes"]}
    hard = [one.id for one in tasks if one.id in never and _is_solved(one, max_steps)]
    if len(hard) < 2 * number:
        sys.exit(f"{len(hard)} tasks were never solved, {2 * number} are needed: choose a smaller --tasks")
    Random("seeds").shuffle(hard)
    counts = {name: Count(successes=0, rollouts=never[name]["rollouts"]) for name in hard}
    train, heldout = sorted(hard[:number]), sorted(hard[number : 2 * number])
    return {name: counts[name] for name in train}, {name: counts[name] for name in heldout}


def _is_solved(task: Task, max_steps: int) -> bool:
    return len(list(islice(answers(task), max_steps + 1))) <= max_steps


def write_recipes(out: Path, pool: str) -> None:
    """The recipes of the teacher and of the methods. They extend one with the chosen tasks."""
    teacher = shlex.join((sys.executable, str(Path(__file__).with_name("demonstrator.py")), pool))
    taught = json.dumps(str(out / "taught"))
    tasks = (
        f"train = {json.dumps(str(out / 'train.json'))}\nheldout = {json.dumps(str(out / 'heldout.json'))}"
    )
    recipes = {
        "tasks": f'extends = "{BASE}"\n[tasks]\n{tasks}\noverall = ""\n[eval]\nheldout_rollouts = 4\n',
        "taught": "[train]\nepochs = 1\n[env]\nparallel = 4\n"
        f"[rollout]\ngroup_size = 2\nagent = {json.dumps(teacher)}\n",
        "grpo": "[replay]\nenabled = false\n",
        "arpo": "",
        "seeded": f"[replay]\nseeds = {taught}\n",
        "sft": f'[train]\nmethod = "sft"\n[offline]\nsource = {taught}\nbatch = 16\npasses = 4\n',
    }
    for name, text in recipes.items():
        extends = "" if name == "tasks" else 'extends = "tasks.toml"\n'
        (out / f"{name}.toml").write_text(extends + text, "utf-8")


def arpo(*words: str) -> int:
    """Run a command of `arpo`. Its output goes to stderr."""
    command = [sys.executable, "-m", "arpo", *words]
    return subprocess.run(command, stdout=sys.stderr, check=False).returncode


def require(code: int) -> None:
    if code not in (0, 1):  # 1: some runs failed, and the report names them
        sys.exit(code)


def prepare(out: Path, pool: str, number: int, settings: Settings) -> None:
    """Screen, choose the tasks and record the teacher."""
    screened = out / "screened.json"
    require(arpo("screen", BASE, "--tasks", pool, "--out", str(screened), *settings))
    report = json.loads(screened.with_name("screened.json.report.json").read_text("utf-8"))
    chosen = choose(report, load_tasks(pool), number, RolloutConfig().max_steps)
    source = pool if is_shipped(pool) else os.path.relpath(pool, out)
    for name, counts in zip(("train", "heldout"), chosen, strict=True):
        (out / f"{name}.json").write_text(format_selection(source, counts), "utf-8")
    write_recipes(out, pool)
    require(arpo("collect", str(out / "taught.toml"), "--run.dir", str(out / "taught"), *settings))


def train_after_sft(out: Path, seeds: int, jobs: int, settings: Settings) -> int:
    """GRPO from the model of each run of SFT. Returns 1 if a run failed."""

    def train(seed: int) -> int:
        folder, model = out / AFTER_SFT / f"seed-{seed}", out / "sft" / f"seed-{seed}" / "model"
        own = ["--run.dir", str(folder), "--run.seed", str(seed), "--model.path", str(model)]
        if (folder / "summary.json").exists():
            return 0
        return arpo("train", str(out / "grpo.toml"), *settings, *own) if model.exists() else 1

    with ThreadPoolExecutor(jobs) as pool:
        return max(pool.map(train, range(seeds)))


def summary(comparison: Mapping[str, Any]) -> dict[str, Any]:
    """The line of results, from compare.json."""
    differences: dict[str, dict[str, Any]] = {}
    for one in comparison["differences"]:
        interval = [round(100 * end, 1) for end in one["interval"] or ()]
        found = {
            "points": round(100 * one["mean"], 1),
            "interval": interval,
            "p": round(one["corrected_p"], 4),
        }
        differences.setdefault(one["method"], {})[one["tasks"]] = found
    rates = {
        row["name"]: {name: round(100 * rate["mean"], 1) for name, rate in row["success"].items()}
        for row in comparison["rows"]
    }
    return {
        "benchmark": "seeds",
        "seeds": len({run["seed"] for run in comparison["runs"] if run["ended"]}),
        "success": {**rates, "base": _base_rates(comparison["runs"])},
        "minus_arpo": differences,
        "missing": comparison["missing"],
        "goal_15_points": differences.get("seeded", {}).get("train", {}).get("points", 0.0) >= 15,
    }


def _base_rates(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Success before training. A comparison has no row for it: sft_grpo starts from another model."""
    first = [run["evaluations"][0]["tallies"] for run in runs if run["method"] == "arpo" and run["ended"]]
    rates: dict[str, list[float]] = {}
    for name, tallies in (one for sets in first for one in sets.items()):
        rates.setdefault(name, []).extend(score / played for score, played in tallies.values() if played)
    return {name: round(100 * fmean(each), 1) for name, each in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--seeds", type=int, default=5, help="random seeds per method (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (%(default)s)")
    parser.add_argument(
        "--tasks", type=int, default=64, help="training tasks, and held-out ones (%(default)s)"
    )
    parser.add_argument("--pool", default="desk:pool", help="tasks to screen (%(default)s)")
    options, settings = parser.parse_known_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    pool = options.pool if is_shipped(options.pool) else str(Path(options.pool).resolve())
    prepare(out, pool, options.tasks, settings)
    recipes = [str(out / f"{name}.toml") for name in METHODS]
    plan = ["--seeds", str(options.seeds), "--jobs", str(options.jobs), "--out", str(out)]
    code = arpo("compare", *recipes, *plan, *settings)
    require(code)
    code = max(code, train_after_sft(out, options.seeds, options.jobs, settings))
    require(code)
    require(arpo("compare", "--report", "--out", str(out), "--against", "arpo"))
    print(json.dumps(summary(json.loads((out / "compare.json").read_text("utf-8")))))
    sys.exit(code)


if __name__ == "__main__":
    main()
