"""What replay is worth on Desk's 32 tasks: the recipe `desk` with and without it, paired by seed.

    python benchmarks/replay.py --seeds 5 --jobs 2 --out runs/replay [--section.key VALUE …]

Each run is `arpo train desk` in a folder of its own, so what was stopped goes on. Prints a table of every
run, then one JSON line: means, spreads, and the paired difference with its 95% interval (Student's t).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

SIDES = {"replay": "true", "plain": "false"}
COLUMNS = (
    "", "seed", "base", "after", "base, held out", "after, held out", "without signal", "rescued", "episodes",
    "seconds",
)  # fmt: skip
T_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def run(folder: Path, seed: int, side: str, settings: Sequence[str]) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "arpo", "train", "desk", "--run.dir", str(folder), "--run.seed", str(seed),
        "--replay.enabled", SIDES[side], "--eval.rollouts", "16", "--eval.every", "0", *settings,
    ]  # fmt: skip
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("a") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)
    return json.loads((folder / "summary.json").read_text())


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of the mean's 95% interval."""
    middle, half = mean(values), T_95[len(values)] * stdev(values) / len(values) ** 0.5
    return middle, middle - half, middle + half


def row(side: str, seed: int, summary: dict[str, Any]) -> str:
    success, groups = summary["success"], summary["groups"]
    rates = [success[when][tasks] for tasks in ("train", "heldout") for when in ("base", "final")]
    cells = [side, str(seed), *(f"{100 * rate:.1f}" for rate in rates)]
    cells += [f"{groups['without_signal']} of {groups['total']}", str(groups["rescued"])]
    cells += [str(summary["episodes"]), f"{summary['seconds']:.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs at once, each with one thread if more than one"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/replay"))
    options, settings = parser.parse_known_args()
    if options.seeds not in T_95:
        parser.error(f"--seeds: from {min(T_95)} to {max(T_95)}")
    if options.jobs > 1:
        settings = ["--run.threads", "1", *settings]
    places = [(side, seed) for seed in range(options.seeds) for side in SIDES]
    with ThreadPoolExecutor(options.jobs) as pool:
        summaries = dict(
            zip(
                places,
                pool.map(lambda p: run(options.out / f"{p[0]}-{p[1]}", p[1], p[0], settings), places),
                strict=True,
            )
        )
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"|{' --- |' * len(COLUMNS)}")
    for side in SIDES:
        for seed in range(options.seeds):
            print(row(side, seed, summaries[side, seed]))
    result: dict[str, Any] = {"benchmark": "replay", "seeds": options.seeds}
    for tasks in ("train", "heldout"):
        final = {
            side: [summaries[side, seed]["success"]["final"][tasks] for seed in range(options.seeds)]
            for side in SIDES
        }
        base = [summaries["replay", seed]["success"]["base"][tasks] for seed in range(options.seeds)]
        differences = [a - b for a, b in zip(final["replay"], final["plain"], strict=True)]
        result[tasks] = {
            "base": interval(base),
            **{side: interval(rates) for side, rates in final.items()},
            **{f"{side}_spread": stdev(rates) for side, rates in final.items()},
            "difference": interval(differences),
            "ratio": mean(final["replay"]) / mean(final["plain"]),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
