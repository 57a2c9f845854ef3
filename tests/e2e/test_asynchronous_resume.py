"""An asynchronous run killed at any moment trains every group once and loses none that a checkpoint holds."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from arpo.storage.checkpoint import CHECKPOINTS, latest
from kill_at import Ended, arpo
from test_resume import TASKS, episodes, metrics
from trained import group_numbers

pytestmark = pytest.mark.slow

SETTINGS = """
    --train.max_staleness 1 --train.epochs 4 --train.tasks_per_batch 4 --train.tasks_per_update 2
    --rollout.max_steps 3 --env.parallel 6 --eval.every 2 --eval.rollouts 1 --eval.heldout_rollouts 1
    --run.threads 1 --store.tensorboard false
"""


def train(run: Path, at: str = "", signals: tuple[int, ...] = (signal.SIGKILL,)) -> Ended:
    for name, ids in TASKS.items():
        counts = {task: {"successes": 0, "rollouts": 0} for task in ids}
        chosen = {"source": f"desk:{name}", "tasks": counts}
        (run.parent / f"{name}.json").write_text(json.dumps(chosen), "utf-8")
    tasks = ("--tasks.train", f"{run.parent}/pool.json", "--tasks.heldout", f"{run.parent}/heldout.json")
    words = ("train", "desk", *SETTINGS.split(), *tasks, "--run.dir", str(run))
    return arpo(run.with_suffix(".log"), *words, at=at, signals=signals)


def waiting(run: Path) -> dict[int, list[str]]:
    """The finished groups of the newest checkpoint: their episodes by number."""
    newest, _ = latest(run / CHECKPOINTS)
    assert newest is not None
    state = json.loads((newest.path / "state.json").read_text("utf-8"))
    return {group["index"]: group["trajectories"] for group in state["stream"]["finished"]}


def groups(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "groups.jsonl").read_text("utf-8").splitlines()]


def assert_complete(run: Path) -> None:
    """Four batches of four groups; every task four times; every episode of a trained group stored once."""
    assert sorted({record["step"] for record in groups(run)}) == [1, 2, 3, 4]
    trained = group_numbers(groups(run))
    assert trained == list(range(16))
    stored = Counter(one["episode_id"] for one in episodes(run) if one["episode_id"].startswith("group-"))
    assert set(stored.values()) == {1}
    assert stored.keys() == {f"group-{number}-{episode}" for number in trained for episode in range(2)}
    tasks = {one["episode_id"]: one["task_id"] for one in episodes(run)}
    assert Counter(tasks[f"group-{number}-0"] for number in trained) == dict.fromkeys(TASKS["pool"], 4)
    lines = metrics(run)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert [line["step"] for line in lines if "eval_train" in line] == [0, 2, 4]
    assert lines[-1]["episodes"] == 32
    assert all(line["staleness_max"] <= 1 for line in lines[1:])
    summary = json.loads((run / "summary.json").read_text("utf-8"))
    assert summary["groups"]["total"] == 16
    assert (run / "model" / "model.safetensors").is_file()


# In the order in which a run reaches them.
SEQUENCES = (
    ("in a group", "after the learning", "in a line of a group", "before the checkpoint"),
    ("in an evaluation", "in the checkpoint", "before the checkpoint's rename", "in the final evaluation"),
)


@pytest.mark.parametrize("moments", SEQUENCES, ids=[", ".join(moments) for moments in SEQUENCES])
def test_a_run_killed_at_any_moment_loses_and_repeats_nothing(
    tmp_path: Path, moments: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    kept: dict[int, list[str]] = {}
    for moment in moments:
        ended = train(run, at=moment)
        assert ended.code == -signal.SIGKILL, ended.output
        kept |= waiting(run)
    ended = train(run)
    assert ended.code == 0, ended.output
    assert_complete(run)
    assert kept.keys() <= {*group_numbers(groups(run))}
    stored = {one["episode_id"] for one in episodes(run)}
    assert {name for names in kept.values() for name in names} <= stored


def test_ctrl_c_keeps_finished_groups_and_plays_the_others_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    stopped = train(run, at="in a group", signals=(signal.SIGINT,))
    assert stopped.code == 130 and "Run the same command again to resume" in stopped.output
    kept = waiting(run)
    before = {one["episode_id"]: one for one in episodes(run)}
    assert all(name in before for names in kept.values() for name in names)
    assert train(run).code == 0
    assert_complete(run)
    after = {one["episode_id"]: one for one in episodes(run)}
    assert all(after[name] == one for name, one in before.items())
