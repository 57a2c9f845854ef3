"""Desk's base model and another tiny model: success before and after `make train`.

    python -m tools.pretrain --last-stage --dialect tool_calls --out runs/tool_calls
    python benchmarks/base_models.py runs/tool_calls/model --dialect tools.pretrain.language:TOOL_CALLS \
        --seeds 3 --jobs 2 --out runs/base-models

    python -m tools.pretrain --family qwen3_5 --out runs/qwen3_5
    python benchmarks/base_models.py runs/qwen3_5/model --lr 2e-4 --seeds 6 --jobs 2 --out runs/base-models

The first commands pretrain a model that answers in tool calls: 3 minutes on a GPU, without --last-stage 12.
The third one pretrains a Qwen3.5. Both are then trained with the recipe desk_fresh (1,024 episodes, as `make
train`), beside the shipped model, and play all four test sets before and after. On a GPU, start NVIDIA's MPS
first. Config keys apply to all runs. If it is interrupted, run the same command again. Prints one JSON line
per run, and one with the differences over all held-out tasks (other model minus shipped model, in points,
with 95% intervals over seeds and tasks).

Tool calls. Predictions before the first run, in which `--last-stage` repeated only the last stage of
pretraining: the base models differ by −1 (−5 to +3), the trained ones by −0.5 (−3 to +2). Fewer than 1% of
the episodes have an answer in tool calls that does not parse. Predictions before the run with the whole
pretraining: the base models differ by 0 (−5 to +5), the trained ones by −1 (−4 to +2). Both had about −4. A
click then had nine tokens, one more than in UI-TARS text: the space between two coordinates, which also
stands in typed text. Now a click has eight in both. Prediction before the run with these tokens and
`--last-stage`: the trained models differ by −1 (−4 to +2).

Qwen3.5. Predictions before the first run: before training the models differ by −5 (−14 to +4), because it was
pretrained for 60% of the updates; the gains of training differ by 0 (−6 to +6). They differed by −17 and −29.
Its heads of linear attention began without a memory: `A_log` and `dt_bias` had the values of a new model of
transformers, with which almost every head forgets a token before the next one. Full attention was in the last
of four layers only. Now the heads begin with memories of 10 to 1,000 tokens, and every second layer has full
attention. Predictions for this model with all updates: it differs by −3 (−9 to +3) before training, and the
gains differ by −2 (−8 to +4). It differed by +3.4 before training and by −4.0 (−8.6 to +0.6) after it.

The learning rate 1e-4 was chosen for the shipped model. Learning rates of 1e-4, 2e-4 and 3e-4 for this
Qwen3.5 play the validation half once (seeds 0 to 2); the best one there plays the test half. Predictions:
2e-4 minus 1e-4 is +3 (−2 to +8) on the validation half, 3e-4 minus 1e-4 is 0 (−7 to +7).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from arpo.reporting.statistics import mean_over_seeds_and_tasks

ROOT = Path(__file__).parents[1]
BASE = "desk_fresh"  # the recipe, with the shipped model
DIALECT = "ui_tars_1_5"  # of the base model
TRAIN = "train"
Run = Mapping[str, Any]


def write_recipe(model: Path, dialect: str, lr: float | None, folder: Path) -> Path:
    """The recipe desk_fresh with another model, named after the folder that contains the model's folder."""
    path = folder / f"{model.parent.name}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    values = f"path = {json.dumps(str(model))}\ndialect = {json.dumps(dialect)}\n"
    optim = "" if lr is None else f"\n[optim]\nlr = {lr}\n"
    path.write_text(f'extends = "{BASE}"\n\n[model]\n{values}{optim}', encoding="utf-8")
    return path


def run_line(run: Run, folder: Path) -> dict[str, Any]:
    """A finished run of compare.json: successes and episodes by set of tasks, and successes by task."""
    first, *_, last = (found["tallies"] for found in run["evaluations"])
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    malformed = [line["malformed"] for line in metrics if "malformed" in line]
    return {
        "run": run["method"],
        "seed": run["seed"],
        "episodes": run["episodes"],
        "seconds": round(run["seconds"]),
        "malformed": [round(malformed[0], 4), round(malformed[-1], 4)],  # first and last batch
        "before": _totals(first),
        "after": _totals(last),
        "successes_before_by_task": _by_task(first),
        "successes_by_task": _by_task(last),
    }


def _totals(tallies: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    return {
        name: [sum(part) for part in zip(*tasks.values(), strict=True)] for name, tasks in tallies.items()
    }


def _by_task(tallies: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    return {name: [tasks[task][0] for task in sorted(tasks)] for name, tasks in tallies.items()}


def differences(lines: Sequence[Run], other: str) -> dict[str, Any]:
    """The other model minus the base model over all held-out tasks; the rate of each set. In percent."""
    runs = {(line["run"], line["seed"]): line for line in lines}
    seeds = sorted(seed for name, seed in runs if name == other and (BASE, seed) in runs)
    result: dict[str, Any] = {"benchmark": "base_models", "seeds": len(seeds)}
    minus: dict[str, list[list[float]]] = {}
    for when in ("before", "after"):
        rates = {name: [_rates(runs[name, seed], when) for seed in seeds] for name in (BASE, other)}
        pairs = zip(rates[other], rates[BASE], strict=True)
        minus[when] = [_minus(_held_out(one), _held_out(base)) for one, base in pairs]
        means = {
            name: {tasks: round(fmean(fmean(one[tasks]) for one in some), 1) for tasks in some[0]}
            for name, some in rates.items()
        }
        result[when] = {**means, **_difference(minus[when])}
    gains = [_minus(after, before) for after, before in zip(minus["after"], minus["before"], strict=True)]
    result["gain"] = _difference(gains)
    return {**result, "within_3_points": abs(result["after"]["difference"]) <= 3}


def _difference(points_by_seed: Sequence[Sequence[float]]) -> dict[str, Any]:
    test = mean_over_seeds_and_tasks(points_by_seed)
    return {"difference": round(test.mean, 2), "interval": [round(end, 2) for end in test.interval or ()]}


def _rates(line: Run, when: str) -> dict[str, list[float]]:
    """Percentages of the tasks, by set."""
    successes = line["successes_before_by_task" if when == "before" else "successes_by_task"]
    episodes = {tasks: line[when][tasks][1] / len(scores) for tasks, scores in successes.items()}
    return {tasks: [100 * each / episodes[tasks] for each in scores] for tasks, scores in successes.items()}


def _held_out(rates: Mapping[str, Sequence[float]]) -> list[float]:
    return [rate for tasks, some in rates.items() if tasks != TRAIN for rate in some]


def _minus(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(ones, others, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, metavar="NAME/model", help="folder of the other model")
    parser.add_argument("--dialect", default=DIALECT, help="its model.dialect (%(default)s)")
    parser.add_argument(
        "--lr", type=float, help="learning rate of the other model (default: that of the recipe)"
    )
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (%(default)s)")
    options, settings = parser.parse_known_args()
    out = options.out.resolve()
    other = write_recipe(options.model.resolve(), options.dialect, options.lr, out)
    methods = [BASE, str(other)]
    plan = ["--seeds", str(options.seeds), "--jobs", str(options.jobs), "--out", str(out)]
    sets = ["--tasks.heldout", "desk:test", "--eval.heldout_rollouts", "2"]
    command = [sys.executable, "-m", "arpo", "compare", *methods, *plan, *sets, *settings]
    # The module of the dialect is found in the current folder.
    code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode
    if code not in (0, 1):  # 1: some runs failed
        sys.exit(code)
    runs = json.loads((out / "compare.json").read_text("utf-8"))["runs"]
    lines = [run_line(run, out / run["method"] / f"seed-{run['seed']}") for run in runs if run["ended"]]
    for line in (*lines, differences(lines, other.stem)):
        print(json.dumps(line))
    sys.exit(code)


if __name__ == "__main__":
    main()
