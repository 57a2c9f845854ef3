"""Training on tasks made on demand: replay of repeated ones, resume, asynchronous rollouts, collection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest

from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.reporting.display import PlainDisplay
from arpo.tasks.sources import open_tasks
from arpo.training.collect import run_collection
from arpo.training.trainer import Trainer, run_training
from trained import group_numbers, lines, train_to_end
from verdicts import Scripted, small_config
from viewed_runs import answer_of

# Goals that one step can solve: an infeasible one needs error_env().
FRESH = (
    "--tasks.train=desk:fresh",
    "--tasks.heldout=",
    "--tasks.families=TurnMissingSwitch,DeleteMissingMail",
    "--tasks.goals=1",
    "--replay.enabled=false",
)


def fresh_config(folder: Path, count: int, *overrides: str) -> Config:
    folder.mkdir(parents=True, exist_ok=True)
    return small_config(folder, ["pool-001"], *FRESH, f"--train.tasks={count}", *overrides)


def play(config: Config, scores: Sequence[tuple[float, float]]) -> list[str]:
    """Script the scores of both episodes of each visit. Returns the task ids by visit."""
    ids = [task.id for task in open_tasks(config.tasks.train, config)]
    Scripted.play(dict(zip(ids, scores, strict=True)))
    return ids


def training_ids(config: Config) -> list[str]:
    return [episode["task_id"] for episode in lines(config, "trajectories.jsonl")]


def learning(config: Config) -> list[dict[str, object]]:
    """The metrics without those of evaluations: a run of fewer tasks has another one at its end."""
    metrics = lines(config, "metrics.jsonl")
    return [{k: v for k, v in record.items() if not k.startswith("eval_")} for record in metrics]


def test_every_visit_plays_a_new_task(tmp_path: Path) -> None:
    config = fresh_config(tmp_path, 6, "--tasks.families=TurnMissingSwitch")
    ids = play(config, [(1, 0), (0, 0), (0, 0), (0, 0), (1, 1), (0, 1)])
    train_to_end(Trainer, config)
    base, *batches = lines(config, "metrics.jsonl")
    assert "eval_train" not in base  # endless tasks are not evaluated
    assert [batch["success"] for batch in batches] == [0.25, 0.0, 0.75]
    assert training_ids(config) == [name for name in ids for _ in range(2)] and len(set(ids)) == 6


@pytest.mark.slow
def test_a_resumed_run_continues_with_the_same_tasks(tmp_path: Path) -> None:
    whole, part = (fresh_config(tmp_path / name, 6) for name in ("whole", "part"))
    for config, end in ((whole, 6), (part, 2), (part, 4), (part, 6)):
        play(whole, [(1, 0), (0, 0)] * 3)
        train_to_end(Trainer, load_config(config, [f"--train.tasks={end}"]))
    assert learning(part) == learning(whole)
    assert lines(part, "trajectories.jsonl") == lines(whole, "trajectories.jsonl")
    assert len(set(training_ids(whole))) == 6


@pytest.mark.slow
def test_asynchronous_training_plays_every_visit_once_also_after_a_stop(tmp_path: Path) -> None:
    config = fresh_config(tmp_path, 6, "--train.max_staleness=1", "--env.parallel=4")
    ids = play(config, [(1, 0), (0, 0), (0, 1), (0, 0), (1, 1), (0, 1)])
    train_to_end(Trainer, load_config(config, ["--train.tasks=4"]))
    train_to_end(Trainer, config)
    assert sorted(training_ids(config)) == sorted(name for name in ids for _ in range(2))
    assert sorted(group_numbers(lines(config, "groups.jsonl"))) == list(range(6))
    assert lines(config, "metrics.jsonl")[-1]["episodes"] == 12


def test_distinct_tasks_repeat_and_have_stored_successes(tmp_path: Path) -> None:
    config = fresh_config(tmp_path, 4, "--tasks.distinct=2", "--replay.enabled=true")
    tasks = open_tasks(config.tasks.train, config)
    Scripted.play({tasks[0].id: [1, 1, 0, 0, 0, 0], tasks[1].id: [0] * 6})  # the first: base evaluation
    train_to_end(Trainer, config)
    base, first, second = lines(config, "metrics.jsonl")
    assert base["eval_train"] == 0.5  # a fixed number of tasks is evaluated
    assert (first["rescued"], second["rescued"]) == (0, 1)


def test_the_summary_counts_successes_by_goal_family_and_the_first_episode_is_shown(tmp_path: Path) -> None:
    config = fresh_config(tmp_path, 4, "--tasks.distinct=2", "--run.seed=2")
    tasks = open_tasks(config.tasks.train, config)
    Scripted.play({tasks[0].id: [0, 1, 0, 1, 0, 1], tasks[1].id: [1, 1, 0, 1, 0, 0]})
    shown = StringIO()
    assert run_training(config, PlainDisplay(shown)) == 0
    names = [task.snapshot for task in tasks]
    assert sorted(names) == ["DeleteMissingMail", "TurnMissingSwitch"]
    summary = json.loads((Path(config.run.dir) / "summary.json").read_text("utf-8"))
    assert summary["kinds"] == {
        "base": {names[0]: [0.0, 1], names[1]: [1.0, 1]},
        "final": {names[0]: [1.0, 1], names[1]: [0.0, 1]},
    }
    rows = answer_of(config, "tasks")["kinds"]
    assert [(row["kind"], row["before"], row["after"]) for row in rows] == [
        (names[0], 0, 1),
        (names[1], 1, 0),
    ]
    (line,) = [line for line in shown.getvalue().splitlines() if line.startswith("first episode")]
    assert any(task.instruction in line for task in tasks) and "after 1 step" in line


@pytest.mark.slow
def test_a_collection_of_fresh_tasks_trains_offline(tmp_path: Path) -> None:
    config = fresh_config(tmp_path, 3)
    ids = play(config, [(1, 0), (0, 0), (1, 1)])
    assert run_collection(config) == 0
    assert training_ids(config) == [name for name in ids for _ in range(2)]
    offline = load_config(
        config,
        [
            "--train.method=rft",
            "--offline.passes=1",
            f"--offline.source={config.run.dir}",
            f"--run.dir={tmp_path / 'rft'}",
        ],
    )
    assert run_training(offline) == 0
    assert lines(offline, "metrics.jsonl")[-1]["step"] == 1
