"""Writes run folders like those of `arpo train`, as input of a comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.config.recipe import to_toml

Scores = Mapping[str, Mapping[str, Sequence[float]]]  # by set and task


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    """Contents of a run folder. A batch is (groups, without_signal, rescued, replay_age) of ten episodes."""

    base: Scores
    final: Scores = field(default_factory=dict)
    batches: Sequence[tuple[int, int, int, float]] = ()
    between: Scores = field(default_factory=dict)  # an evaluation after the first batch
    seconds: float = 100.0
    config: Config = field(default_factory=Config)


def write_run(folder: Path, records: RunRecords) -> None:
    """Write the folder; with a summary if there is a final evaluation."""
    folder.mkdir(parents=True)
    seed = int(folder.name.removeprefix("seed-"))
    config = replace(records.config, run=replace(records.config.run, dir=str(folder), seed=seed))
    (folder / "recipe.toml").write_text(to_toml(config), "utf-8")
    episodes = 10 * len(records.batches)
    landmarks = [("base", 0, 0, records.base), ("", 1, 10, records.between)]
    landmarks += [("final", len(records.batches), episodes, records.final)]
    _lines(
        folder / "evaluations.jsonl",
        [
            {"step": step, "episodes": played, "landmark": name, "sets": sets, "failures": {}}
            for name, step, played, sets in landmarks
            if sets
        ],
    )
    metrics: list[dict[str, Any]] = [{"step": 0, "eval_train": 0.5}]
    timing = []
    for step, (groups, without, rescued, age) in enumerate(records.batches, 1):
        counts = {"groups": groups, "without_signal": without, "rescued": rescued, "replay_age": age}
        metrics.append({"step": step, "episodes": 10 * step, "success": step / 10, **counts})
        timing.append(
            {"step": step, "rollout": 2.0, "learn": 3.0, "evaluate": 5.0, "episodes_per_second": 5.0}
        )
    _lines(folder / "metrics.jsonl", metrics)
    _lines(folder / "timing.jsonl", timing)
    if records.final:
        summary = {"episodes": episodes, "seconds": records.seconds, "success": {}, "seed": seed}
        (folder / "summary.json").write_text(json.dumps(summary), "utf-8")


def _lines(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
