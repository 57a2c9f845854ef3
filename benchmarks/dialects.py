"""Desk's tiny model in two dialects, UI-TARS text and tool calls: success before and after `make train`.

    python -m tools.pretrain --dialect tool_calls --report-size 0 --out runs/tool_calls
    python benchmarks/dialects.py runs/tool_calls/model --seeds 3 --jobs 2 --out runs/dialects

The first command pretrains the model with answers in tool calls, from the beginning and as long as the
shipped one: 12 minutes on a GPU. The second one trains both models with the recipe desk_fresh (1,024
episodes, as `make train`) and plays all four test sets before and after. On a GPU, start NVIDIA's MPS first.
Config keys apply to all runs. If it is interrupted, run the same command again. Prints one JSON line per run,
and one with the differences over all held-out tasks (tool calls minus UI-TARS text, in points, with 95%
intervals over seeds and tasks).

Predictions before the first run, in which `--last-stage` repeated only the last stage of pretraining: the
base models differ by −1 (−5 to +3), the trained ones by −0.5 (−3 to +2). Fewer than 1% of the episodes have
an answer in tool calls that does not parse. Predictions before the run with the whole pretraining: the base
models differ by 0 (−5 to +5), the trained ones by −1 (−4 to +2).
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
UI_TARS, TOOL_CALLS = "desk_fresh", "tool_calls"  # names of the recipes
TRAIN = "train"
Run = Mapping[str, Any]


def write_recipe(model: Path, folder: Path) -> Path:
    """The recipe desk_fresh with the model that answers in tool calls."""
    path = folder / f"{TOOL_CALLS}.toml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'extends = "{UI_TARS}"\n\n[model]\npath = {json.dumps(str(model))}\n'
        'dialect = "tools.pretrain.language:TOOL_CALLS"\n',
        encoding="utf-8",
    )
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


def differences(lines: Sequence[Run]) -> dict[str, Any]:
    """Tool calls minus UI-TARS text over all held-out tasks; the success rate of each set. In percent."""
    runs = {(line["run"], line["seed"]): line for line in lines}
    seeds = sorted(seed for name, seed in runs if name == TOOL_CALLS and (UI_TARS, seed) in runs)
    result: dict[str, Any] = {"benchmark": "dialects", "seeds": len(seeds)}
    for when in ("before", "after"):
        rates = {name: [_rates(runs[name, seed], when) for seed in seeds] for name in (UI_TARS, TOOL_CALLS)}
        pairs = zip(rates[TOOL_CALLS], rates[UI_TARS], strict=True)
        test = mean_over_seeds_and_tasks([_minus(_held_out(one), _held_out(other)) for one, other in pairs])
        means = {
            name: {tasks: round(fmean(fmean(one[tasks]) for one in some), 1) for tasks in some[0]}
            for name, some in rates.items()
        }
        interval = [round(end, 2) for end in test.interval or ()]
        result[when] = {**means, "difference": round(test.mean, 2), "interval": interval}
    return {**result, "within_3_points": abs(result["after"]["difference"]) <= 3}


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
    parser.add_argument("model", type=Path, help="folder of the model that answers in tool calls")
    parser.add_argument("--out", type=Path, required=True, help="output directory")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time (%(default)s)")
    options, settings = parser.parse_known_args()
    out = options.out.resolve()
    methods = [UI_TARS, str(write_recipe(options.model.resolve(), out))]
    plan = ["--seeds", str(options.seeds), "--jobs", str(options.jobs), "--out", str(out)]
    sets = ["--tasks.heldout", "desk:test", "--eval.heldout_rollouts", "2"]
    command = [sys.executable, "-m", "arpo", "compare", *methods, *plan, *sets, *settings]
    # The module of the dialect is found in the current folder.
    code = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode
    if code not in (0, 1):  # 1: some runs failed
        sys.exit(code)
    runs = json.loads((out / "compare.json").read_text("utf-8"))["runs"]
    lines = [run_line(run, out / run["method"] / f"seed-{run['seed']}") for run in runs if run["ended"]]
    for line in (*lines, differences(lines)):
        print(json.dumps(line))
    sys.exit(code)


if __name__ == "__main__":
    main()
