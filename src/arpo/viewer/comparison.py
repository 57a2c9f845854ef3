"""Reads the folder of a comparison and writes compare.md, compare.json and compare.html.

Files needed for each run: recipe.toml, metrics.jsonl, timing.jsonl, evaluations.jsonl, and summary.json once
the run has finished. Collected episodes need timing.jsonl, otherwise their time is not counted. Checkpoints
and episodes are not needed, so a folder can be copied without them. Unfinished runs contribute curves only
and are listed as missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arpo.algorithms.curriculum import Count
from arpo.envs.task_files import load_counts
from arpo.errors import UserError
from arpo.evaluation.compare import BASE, COLLECTED, choose_baseline, collection_seconds, method_name
from arpo.evaluation.comparison_results import STAGES, Comparison, Evaluation, RunResult, compare_runs
from arpo.recipe import load_config
from arpo.storage.run_folder import (
    EVALUATIONS,
    METRICS,
    RECIPE,
    TIMING,
    read_log,
    read_summary,
    write_atomically,
)
from arpo.viewer.comparison_page import render_page
from arpo.viewer.comparison_text import render_markdown

MARKDOWN_FILE, JSON_FILE, HTML_FILE = "compare.md", "compare.json", "compare.html"
BATCH_METRICS = ("step", "episodes", "success", "groups", "without_signal", "rescued", "replay_age")
STAGE_OF_TIMING = {stage: stage for stage in STAGES} | {"judge": "learn"}  # keys of timing.jsonl


def write_comparison(out: Path, recipes: Sequence[str], seeds: int | None, against: str | None) -> Path:
    """Write the three files from the runs in `out`. Returns the path of the HTML page.

    `recipes` sets the methods and their order. If it is empty, all methods in `out` are compared, the
    baseline first. `seeds` None: all seeds in `out`. `against` None: the baseline is the first recipe, or
    the base model if `recipes` is empty.
    """
    if not out.is_dir():
        raise UserError(f"{out}: no such folder: create it with `arpo compare RECIPE … --out FOLDER`")
    folders = _run_folders(out)
    available = sorted({folder.parent.name for folder in folders})
    requested = list(dict.fromkeys(map(method_name, recipes)))
    if not requested and not available:
        raise UserError(f"{out}: contains no runs: start them with `arpo compare RECIPE … --out {out}`")
    baseline = choose_baseline(against, [*requested, BASE] if requested else [BASE, *available])
    methods = requested or sorted(available, key=lambda name: (name != baseline, name))
    folders = [folder for folder in folders if folder.parent.name in methods]
    if seeds is None:
        if missing := [name for name in methods if name not in available]:
            raise UserError(
                f"{out}: contains no runs of {', '.join(missing)}: choose from {', '.join(available)}"
            )
        seeds = 1 + max(map(_seed_of, folders))
    folders.sort(key=lambda folder: (methods.index(folder.parent.name), _seed_of(folder)))
    runs = [read_run_result(folder) for folder in folders if _seed_of(folder) < seeds]
    comparison = compare_runs(runs, methods, seeds, baseline, _screening_counts(runs))
    write_atomically(out / JSON_FILE, to_json(comparison, runs))
    write_atomically(out / MARKDOWN_FILE, render_markdown(comparison, runs))
    write_atomically(out / HTML_FILE, render_page(comparison, runs))
    return out / HTML_FILE


def _run_folders(out: Path) -> list[Path]:
    """Folders of the runs, without those of collected episodes."""
    found = [path.parent for path in out.glob(f"*/seed-*/{RECIPE}")]
    return [folder for folder in found if folder.parent.name not in (BASE, COLLECTED)]


def _seed_of(folder: Path) -> int:
    text = folder.name.removeprefix("seed-")
    if not re.fullmatch("[0-9]{1,4}", text):
        raise UserError(f"{folder}: run folders of a comparison are named seed-0, seed-1, …: move it away")
    return int(text)


def read_run_result(folder: Path) -> RunResult:
    """Read a run folder, finished or not. Raises UserError if a record in it is damaged."""
    config = load_config(folder / RECIPE)
    summary = read_summary(folder)
    batches = [line for line in read_log(folder, METRICS) if line["step"] > 0]
    evaluations = [_evaluation(line) for line in read_log(folder, EVALUATIONS)]
    stages: dict[str, float] = {}
    for line in read_log(folder, TIMING):
        for name, stage in STAGE_OF_TIMING.items():
            stages[stage] = stages.get(stage, 0.0) + line.get(name, 0.0)
    seconds = summary.get("seconds", 0.0)
    if config.train.method != "online":
        seconds += collection_seconds(folder.parents[1] / COLLECTED / folder.name)
    return RunResult(
        method=folder.parent.name,
        seed=_seed_of(folder),
        config=config,
        episodes=summary.get("episodes", max((line.get("episodes", 0) for line in batches), default=0)),
        seconds=seconds,
        ended=bool(summary) and any(one.landmark == "final" for one in evaluations),
        batches=tuple({name: line.get(name) for name in BATCH_METRICS} for line in batches),
        stages=stages,
        evaluations=tuple(evaluations),
    )


def _evaluation(line: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        step=line["step"],
        episodes=line["episodes"],
        landmark=line["landmark"],
        tallies={
            task_set: {task: (sum(scores), len(scores)) for task, scores in by_task.items()}
            for task_set, by_task in line["sets"].items()
        },
    )


def _screening_counts(runs: Sequence[RunResult]) -> dict[str, Count]:
    """Screening counts of the training tasks. Skips task files that cannot be loaded any more."""
    found: dict[str, Count] = {}
    for tasks in dict.fromkeys(run.config.tasks for run in runs):
        try:
            found |= load_counts(tasks.train, tasks.examples)
        except UserError:
            continue
    return found


def to_json(comparison: Comparison, runs: Sequence[RunResult]) -> str:
    """JSON with all numbers of the comparison and the results of every run, one run per line.

    The field names of the dataclasses are the JSON keys. Tallies are [sum of scores, rollouts] by task.
    """
    run_lines = ",\n".join(f"  {json.dumps(asdict(run))}" for run in runs)
    parts = [
        f' "{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in asdict(comparison).items()
    ]
    return "{\n" + ",\n".join([*parts, f' "runs": [\n{run_lines}\n ]']) + "\n}\n"
