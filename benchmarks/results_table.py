"""Writes benchmarks/results/README.md: the table of every run behind docs/results.md.

    python benchmarks/results_table.py            # writes the page
    python benchmarks/results_table.py --print    # prints it

The JSON files in benchmarks/results have the runs, series.toml has the text above each table.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
PAGE = FOLDER / "README.md"
HEAD = """# Every run

Made by `python benchmarks/results_table.py` from the JSON files of this folder and `series.toml`. Success in
percent at temperature 0.6, before → after training. [Results](../../docs/results.md) has means, intervals and
conclusions.
"""
TITLES = {
    "train": "training tasks",
    "overall": "all tasks",
    "heldout": "held-out tasks",
    "instances_validation": "new instances",
    "families_validation": "new goal families",
    "applications_validation": "new application",
    "instances_test": "test half: instances",
    "families_test": "families",
    "applications_test": "application",
    "long_test": "longer tasks",
}

Count = Sequence[float]
"""Successes and episodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Counts of one run by task set."""

    run: str
    seed: int
    before: Mapping[str, Count]
    after: Mapping[str, Count]


def read_rows(data: Any) -> Iterator[Row]:
    """Rows of a list of runs, of a comparison (`compare.json`), or of runs by name ("g2-s0-10")."""
    if isinstance(data, list):
        for one in data:
            after = {**one.get("after", {}), **one.get("test", {})}
            yield Row(run=one["run"], seed=one["seed"], before=one.get("before", {}), after=after)
    elif isinstance(data.get("runs"), list):
        for one in data["runs"]:
            first, *_, last = (count_tallies(found["tallies"]) for found in one["evaluations"])
            yield Row(run=one["method"].replace("-", "/", 1), seed=one["seed"], before=first, after=last)
    else:
        for name, one in data.get("runs", data).items():
            run, _, seed = name.rpartition("-")
            counts = one.get("counts") or {"base": {"train": one["base"]}, "final": {"train": one["final"]}}
            yield Row(run=run, seed=int(seed), before=counts["base"], after=counts["final"])


def count_tallies(tallies: Mapping[str, Mapping[str, Count]]) -> dict[str, Count]:
    return {
        tasks: (sum(one for one, _ in counts.values()), sum(all_ for _, all_ in counts.values()))
        for tasks, counts in tallies.items()
    }


def format_cell(row: Row, tasks: str) -> str:
    rates = [
        f"{100 * counts[tasks][0] / counts[tasks][1]:.1f}"
        for counts in (row.before, row.after)
        if tasks in counts
    ]
    return " → ".join(rates)


def make_table(rows: list[Row]) -> str:
    sets = [name for name in TITLES if any(name in row.before or name in row.after for row in rows)]
    lines = [["run, seed", *(TITLES[name] for name in sets)], ["---"] * (len(sets) + 1)]
    lines += [[f"{row.run}, {row.seed}", *(format_cell(row, name) for name in sets)] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def make_page() -> str:
    parts = [HEAD]
    for series in tomllib.loads((FOLDER / "series.toml").read_text("utf-8"))["series"]:
        data = json.loads((FOLDER / series["file"]).read_text("utf-8"))
        rows = list(read_rows(data[series["part"]] if "part" in series else data))
        source = f"`{series['file']}`, {len(rows)} runs."
        parts.append(f"## {series['title']}\n\n{series['text'].strip()}\n\n{source}\n\n{make_table(rows)}")
    return "\n".join(parts)


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(make_page(), end="")
    else:
        PAGE.write_text(make_page(), "utf-8")
