"""A run on tasks that never repeat, with two held-out sets: summary, report, card, measuring it again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arpo.api import open_run
from arpo.cli.entry_point import main
from arpo.config import Config
from arpo.errors import UserError
from arpo.reporting.display import success_rows
from arpo.storage.run_folder import RunFolder
from arpo.tasks.sources import open_tasks
from arpo.training.trainer import run_training
from arpo.viewer.export import write_report
from markup import answers, report_of
from trained import lines
from verdicts import HELDOUT, Scripted, select, small_config

OTHER = "heldout-007"
NEW = (
    "--tasks.train=desk:fresh",
    "--tasks.families=TurnMissingSwitch,DeleteMissingMail",  # one step solves them
    "--tasks.goals=1",
    "--train.tasks=4",
    "--replay.enabled=false",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("levels")
    easy = select(folder / "easy.json", "desk:heldout", [HELDOUT])
    hard = select(folder / "hard.json", "desk:heldout", [OTHER])
    config = small_config(folder, ["pool-001"], *NEW, f"--tasks.heldout={easy},{hard}")
    ids = [task.id for task in open_tasks(config.tasks.train, config)]
    scores = dict(zip(ids, ([0, 0], [1, 0], [1, 1], [0, 1]), strict=True))
    Scripted.play(scores | {HELDOUT: [0, 1], OTHER: [0, 0]})
    assert run_training(config) == 0
    return config


def test_the_summary_has_every_set_and_the_training_episodes(trained: Config) -> None:
    summary = json.loads((Path(trained.run.dir) / "summary.json").read_text("utf-8"))
    assert summary["success"] == {"base": {"easy": 0.0, "hard": 0.0}, "final": {"easy": 1.0, "hard": 0.0}}
    assert summary["training_episodes"] == {"batches": 1, "first": [1, 4], "last": [3, 4]}
    assert success_rows(summary) == [
        ("training, first and last batch", "25.0% (1/4)", "75.0% (3/4)", "different tasks"),
        ("held-out tasks, easy", "0.0% (0/1)", "100.0% (1/1)", "+100.0 (−12.2 to +100.0)"),
        ("held-out tasks, hard", "0.0% (0/1)", "0.0% (0/1)", "0.0 (−79.3 to +79.3)"),
    ]
    assert [set(line["sets"]) for line in lines(trained, "evaluations.jsonl")] == [{"easy", "hard"}] * 2
    assert lines(trained, "metrics.jsonl")[-1]["eval_easy"] == 1.0


def test_the_report_and_the_card_have_every_set(trained: Config) -> None:
    page = write_report(Path(trained.run.dir))
    assert [row[0] for row in report_of(page)["success"]["rows"]] == [
        "training, first and last batch",
        "held-out tasks, easy",
        "held-out tasks, hard",
    ]
    (tasks,) = (found["tasks"] for name, found in answers(page).items() if name.endswith("/tasks"))
    assert {task["task_set"] for task in tasks} == {"training", "easy", "hard"}
    assert "Not a metric of this version" not in page.read_text("utf-8")
    card = (Path(trained.run.dir) / "model" / "README.md").read_text("utf-8")
    assert "| held-out tasks, easy | 0.0% (0 of 1) | 100.0% (1 of 1) |" in card
    assert 'tasks.heldout = "easy.json,hard.json"' in card


def test_a_finished_run_is_measured_on_other_tasks(trained: Config, tmp_path: Path) -> None:
    other = select(tmp_path / "test.json", "desk:heldout", ["heldout-008"])
    Scripted.play({"heldout-008": [1]})
    out = tmp_path / "scores.json"
    assert main(["eval", trained.run.dir, "--tasks.heldout", other, "--out", str(out)]) == 0
    written = json.loads(out.read_text("utf-8"))
    assert written["model"] == str(Path(trained.run.dir) / "model")
    assert written["heldout"]["tasks"] == {"heldout-008": [1.0]} and "train" not in written
    config = open_run(trained.run.dir).measured_config({"tasks.heldout": other})
    assert (config.tasks.heldout, config.run.seed) == (other, trained.run.seed)


def test_an_unfinished_run_cannot_be_measured(tmp_path: Path) -> None:
    store = RunFolder(tmp_path)
    store.write_recipe(Config())
    store.close()
    with pytest.raises(UserError, match="has no model yet: train to the end"):
        open_run(tmp_path).measured_config()
