"""A comparison's folder, read and written up: compare.md, compare.json and compare.html.

Of each run it needs recipe.toml, metrics.jsonl, timing.jsonl, evaluations.jsonl and, once it has ended,
summary.json; of collected episodes timing.jsonl, or their time is not counted. It needs no checkpoints and no
episodes, so a folder can be brought from elsewhere without them. Runs that have not ended give their curves
and are named as missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arpo.algorithms.curriculum import Count
from arpo.envs.task_files import load_counts
from arpo.errors import UserError
from arpo.evaluation.compare import BASE, COLLECTED, name_of, reference_of, seconds_of_collection
from arpo.evaluation.comparison_results import STAGES, Comparison, Evaluation, Run, compare
from arpo.recipe import load_config
from arpo.storage.run_folder import (
    EVALUATIONS,
    METRICS,
    RECIPE,
    SUMMARY,
    TIMING,
    read_json,
    read_lines,
    write_atomically,
)
from arpo.viewer.comparison_page import page
from arpo.viewer.comparison_text import markdown

TEXT, DATA, PAGE = "compare.md", "compare.json", "compare.html"
KEPT = ("step", "episodes", "success", "groups", "without_signal", "rescued", "replay_age")  # of a batch
STAGE_OF = {stage: stage for stage in STAGES} | {"judge": "learn"}  # lines of timing.jsonl


def write_comparison(out: Path, recipes: Sequence[str], seeds: int | None, against: str | None) -> Path:
    """Write the three files from what is in `out`, and return the page's path.

    Recipes in the order in which they are named; where none are, all that are there, the reference first.
    No number of seeds: as many as there are. No reference: the first recipe named, else the base model.
    """
    if not out.is_dir():
        raise UserError(f"{out}: no such folder: `arpo compare RECIPE … --out FOLDER` makes it")
    folders = _folders(out)
    there = sorted({folder.parent.name for folder in folders})
    named = list(dict.fromkeys(map(name_of, recipes)))
    if not named and not there:
        raise UserError(f"{out}: no runs in it: `arpo compare RECIPE … --out {out}` makes them")
    reference = reference_of(against, [*named, BASE] if named else [BASE, *there])
    methods = named or sorted(there, key=lambda name: (name != reference, name))
    folders = [folder for folder in folders if folder.parent.name in methods]
    if seeds is None:
        if lost := [name for name in methods if name not in there]:
            raise UserError(f"{out}: no runs of {', '.join(lost)} in it; there are: {', '.join(there)}")
        seeds = 1 + max(map(_seed, folders))
    folders.sort(key=lambda folder: (methods.index(folder.parent.name), _seed(folder)))
    runs = [read_run(folder) for folder in folders if _seed(folder) < seeds]
    comparison = compare(runs, methods, seeds, reference, _counts(runs))
    write_atomically(out / DATA, data(comparison, runs))
    write_atomically(out / TEXT, markdown(comparison, runs))
    write_atomically(out / PAGE, page(comparison, runs))
    return out / PAGE


def _folders(out: Path) -> list[Path]:
    """The runs' folders; collected episodes are not among them."""
    found = [path.parent for path in out.glob(f"*/seed-*/{RECIPE}")]
    return [folder for folder in found if folder.parent.name not in (BASE, COLLECTED)]


def _seed(folder: Path) -> int:
    text = folder.name.removeprefix("seed-")
    if not text.isdecimal():
        raise UserError(f"{folder}: is not called seed-0, seed-1, … as a comparison's runs are: move it away")
    return int(text)


def read_run(folder: Path) -> Run:
    try:
        return _run(folder)
    except KeyError as error:
        raise UserError(
            f"{folder}: a record in it has no {error}: bring its files back, or remove it"
        ) from None
    except (TypeError, AttributeError) as error:
        raise UserError(
            f"{folder}: a record in it is damaged ({error}): bring its files back, or remove it"
        ) from None


def _run(folder: Path) -> Run:
    config = load_config(folder / RECIPE)
    summary = read_json(folder / SUMMARY)
    batches = [line for line in read_lines(folder / METRICS) if line["step"] > 0]
    evaluations = [_evaluation(line) for line in read_lines(folder / EVALUATIONS)]
    stages: dict[str, float] = {}
    for line in read_lines(folder / TIMING):
        for name, stage in STAGE_OF.items():
            stages[stage] = stages.get(stage, 0.0) + line.get(name, 0.0)
    seconds = summary.get("seconds", 0.0)
    if config.train.method != "online":
        seconds += seconds_of_collection(folder.parents[1] / COLLECTED / folder.name)
    return Run(
        method=folder.parent.name,
        seed=_seed(folder),
        config=config,
        episodes=summary.get("episodes", max((line.get("episodes", 0) for line in batches), default=0)),
        seconds=seconds,
        ended=bool(summary) and any(one.landmark == "final" for one in evaluations),
        batches=tuple({name: line.get(name) for name in KEPT} for line in batches),
        stages=stages,
        evaluations=tuple(evaluations),
    )


def _evaluation(line: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        step=line["step"],
        episodes=line["episodes"],
        landmark=line["landmark"],
        tallies={
            which: {task: (sum(scores), len(scores)) for task, scores in by_task.items()}
            for which, by_task in line["sets"].items()
        },
    )


def _counts(runs: Sequence[Run]) -> dict[str, Count]:
    """What screening counted for the training tasks; where their file is gone, the report does without."""
    found: dict[str, Count] = {}
    for tasks in dict.fromkeys(run.config.tasks for run in runs):
        try:
            found |= load_counts(tasks.train, tasks.examples)
        except UserError:
            continue
    return found


def data(comparison: Comparison, runs: Sequence[Run]) -> str:
    """All numbers of the comparison, and of every run what they were made of, a run to a line.

    Tallies are [sum of scores, rollouts] by task.
    """
    whole = asdict(comparison)
    of_runs = ",\n".join(f"  {json.dumps(asdict(run))}" for run in runs)
    parts = [f' "{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in whole.items()]
    return "{\n" + ",\n".join([*parts, f' "runs": [\n{of_runs}\n ]']) + "\n}\n"
