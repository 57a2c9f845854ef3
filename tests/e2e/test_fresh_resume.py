"""A run on tasks that never repeat, killed and resumed, ends with the same files as an uninterrupted run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from kill_at import Ended, arpo

pytestmark = pytest.mark.slow

# Goals that the base model sometimes reaches in three steps. The tasks repeat, and the buffer comes back from
# the checkpoint.
SETTINGS = """
    --tasks.train desk:fresh --tasks.goals 1 --tasks.families SetTheme,TurnSwitch,DeleteMissingFile
    --tasks.distinct 4 --train.epochs 6 --train.tasks_per_batch 4 --train.tasks_per_update 4 --eval.rollouts 0
    --run.seed 1 --rollout.max_steps 3 --eval.every 0 --run.threads 1 --tasks.heldout
"""
SAME = ("metrics.jsonl", "trajectories.jsonl", "screenshots.pack", "model/model.safetensors")


def train(run: Path, at: str = "") -> Ended:
    return arpo(run.with_suffix(".log"), "train", "desk", *SETTINGS.split(), "", "--run.dir", str(run), at=at)


def test_a_killed_run_on_fresh_tasks_resumes_to_the_same_result(tmp_path: Path) -> None:
    reference, killed = tmp_path / "reference", tmp_path / "killed"
    assert train(reference).code == 0
    assert train(killed, at="after the learning").code == -signal.SIGKILL
    assert train(killed).code == 0
    for name in SAME:
        assert (killed / name).read_bytes() == (reference / name).read_bytes(), name
    episodes = [json.loads(line) for line in (reference / SAME[1]).read_text("utf-8").splitlines()]
    assert len({episode["task_id"] for episode in episodes}) == 4
    metrics = [json.loads(line) for line in (reference / SAME[0]).read_text("utf-8").splitlines()]
    assert sum(batch["rescued"] for batch in metrics[1:]) >= 1
