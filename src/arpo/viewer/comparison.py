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

from arpo.comparison.compare import BASE, COLLECTED, choose_baseline, method_names
from arpo.comparison.jobs import collection_seconds
from arpo.comparison.results import STAGES, Comparison, compare_runs
from arpo.comparison.run_groups import split_words
from arpo.comparison.run_results import Evaluation, RunResult
from arpo.comparison.tables import render_markdown
from arpo.comparison.terminal import render_terminal
from arpo.config.recipe import load_recorded
from arpo.errors import UserError
from arpo.storage.run_folder import (
    EVALUATIONS,
    METRICS,
    RECIPE,
    TIMING,
    read_log,
    read_summary,
    write_atomically,
)
from arpo.tasks.lists import load_counts
from arpo.tasks.screened import Count
from arpo.viewer.comparison_page import render_page

MARKDOWN_FILE, JSON_FILE, HTML_FILE = "compare.md", "compare.json", "compare.html"
BATCH_METRICS = ("step", "episodes", "success", "groups", "without_signal", "rescued", "replay_age")
STAGE_OF_TIMING = {stage: stage for stage in STAGES} | {"judge": "learn"}  # keys of timing.jsonl


def print_comparison(out: Path, words: Sequence[str], seeds: int | None, against: str | None) -> None:
    """Write the three files and print the table."""
    comparison, runs = load_comparison(out, words, seeds, against)
    page = _write(out, comparison, runs)
    print(render_terminal(comparison), "", page, sep="\n")


def write_comparison(out: Path, words: Sequence[str], seeds: int | None, against: str | None) -> Path:
    """Write the three files. Returns the path of the HTML page."""
    return _write(out, *load_comparison(out, words, seeds, against))


def _write(out: Path, comparison: Comparison, runs: Sequence[RunResult]) -> Path:
    write_atomically(out / JSON_FILE, to_json(comparison, runs))
    write_atomically(out / MARKDOWN_FILE, render_markdown(comparison, runs))
    write_atomically(out / HTML_FILE, render_page(comparison, runs))
    return out / HTML_FILE


def load_comparison(
    out: Path, words: Sequence[str], seeds: int | None, against: str | None
) -> tuple[Comparison, list[RunResult]]:
    """Compare the runs in `out` and the finished runs that `words` name.

    `words` sets the methods and their order: recipes and finished runs. If it is empty, all methods in `out`
    are compared, the baseline first. `seeds` None: all seeds in `out`. `against` None: the baseline is the
    first method, or the base model if `words` is empty.
    """
    recipes, groups = split_words(words)
    if groups and not recipes:
        out.mkdir(parents=True, exist_ok=True)
    if not out.is_dir():
        raise UserError(f"{out}: no such folder: create it with `arpo compare RECIPE … --out FOLDER`")
    folders = _run_folders(out)
    available = sorted({folder.parent.name for folder in folders})
    requested = list(dict.fromkeys(method_names(words, groups).values()))
    if not requested and not available:
        raise UserError(f"{out}: contains no runs: start them with `arpo compare RECIPE … --out {out}`")
    baseline = choose_baseline(against, [*requested, BASE] if requested else [BASE, *available])
    methods = requested or sorted(available, key=lambda name: (name != baseline, name))
    found = {group.name: group.folders for group in groups.values()}
    trained = [name for name in methods if name not in found]
    folders = [folder for folder in folders if folder.parent.name in trained]
    if seeds is None and trained:
        if missing := [name for name in trained if name not in available]:
            raise UserError(
                f"{out}: contains no runs of {', '.join(missing)}: choose from {', '.join(available)}"
            )
        seeds = 1 + max(map(_seed_of, folders))
    for name in trained:
        own = {_seed_of(folder): folder for folder in folders if folder.parent.name == name}
        found[name] = {seed: own[seed] for seed in sorted(own) if seed < (seeds or 0)}
    runs = [read_run_result(found[name][seed], name, seed) for name in methods for seed in found[name]]
    wanted = {name: range(seeds or 0) if name in trained else found[name] for name in methods}
    return compare_runs(runs, wanted, baseline, _screening_counts(runs)), runs


def _run_folders(out: Path) -> list[Path]:
    """Folders of the runs, without those of collected episodes."""
    found = [path.parent for path in out.glob(f"*/seed-*/{RECIPE}")]
    return [folder for folder in found if folder.parent.name not in (BASE, COLLECTED)]


def _seed_of(folder: Path) -> int:
    text = folder.name.removeprefix("seed-")
    if not re.fullmatch("[0-9]{1,4}", text):
        raise UserError(f"{folder}: run folders of a comparison are named seed-0, seed-1, …: move it away")
    return int(text)


def read_run_result(folder: Path, method: str, seed: int) -> RunResult:
    """Read a run folder, finished or not. Raises UserError if a record in it is damaged."""
    config, _ = load_recorded(folder / RECIPE)
    summary = read_summary(folder)
    batches = [line for line in read_log(folder, METRICS) if line["step"] > 0]
    evaluations = [_evaluation(line) for line in read_log(folder, EVALUATIONS)]
    stages: dict[str, float] = {}
    for line in read_log(folder, TIMING):
        for name, stage in STAGE_OF_TIMING.items():
            stages[stage] = stages.get(stage, 0.0) + line.get(name, 0.0)
    seconds = summary.get("seconds", 0.0)
    if config.train.method != "online":
        collected = folder.absolute().parents[1] / COLLECTED / folder.name
        seconds += collection_seconds(collected if collected.is_dir() else Path(config.offline.source))
    return RunResult(
        method=method,
        seed=seed,
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
