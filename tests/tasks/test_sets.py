"""The task sets of a recipe: several held-out sets, generated ones, endless training tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arpo.comparison.results import CURVES
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.config.task_set_names import LEVELS, RESERVED
from arpo.envs.desk.fresh import FreshTasks
from arpo.errors import UserError
from arpo.evaluation.evaluate import run_evaluation
from arpo.evaluation.scoring import training_episodes
from arpo.tasks.sets import evaluated, known_families, load_sets, rollouts_of
from verdicts import HELDOUT, A, B, Scripted, select, small_config

OTHER = "heldout-007"
FRESH = ("--tasks.train=desk:fresh", "--train.tasks=4", "--replay.enabled=false")
ONE_STEP = ("--tasks.families=TurnMissingSwitch,DeleteMissingMail", "--tasks.goals=1")


def sizes(config: Config) -> dict[str, int]:
    return {name: len(tasks) for name, tasks in load_sets(config).items()}


def two_lists(folder: Path) -> str:
    easy = select(folder / "easy.json", "desk:heldout", [HELDOUT])
    return f"--tasks.heldout={easy},{select(folder / 'hard.json', 'desk:heldout', [OTHER])}"


def test_each_source_is_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Scripted.play({A: [1], HELDOUT: [1, 0], OTHER: [0, 0]})
    config = small_config(tmp_path, [A], two_lists(tmp_path), "--eval.heldout_rollouts=2")
    assert sizes(config) == {"train": 1, "easy": 1, "hard": 1}
    assert run_evaluation(config, tmp_path / "scores.json") == 0
    written = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    assert [written[name]["success"] for name in ("train", "easy", "hard")] == [1.0, 0.5, 0.0]
    assert "eval, held-out tasks, easy: 50.0% (1/2)" in capsys.readouterr().out


def test_no_held_out_set_may_contain_a_training_task(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A, B], f"{two_lists(tmp_path)},desk:pool")
    with pytest.raises(UserError, match=f"held-out task '{A}' is also training task '{A}'"):
        load_sets(config)


@pytest.mark.slow
def test_generated_sets_are_complete_whatever_domains_are_chosen(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A, B], "--tasks.heldout=desk:test", f"--tasks.ids={A}")
    generated = {f"{level}_test": 128 for level in LEVELS}
    assert sizes(config) == {"train": 1} | generated
    config = load_config("desk", [*FRESH, "--tasks.domains=Conf", "--tasks.heldout=desk:families/validation"])
    assert sizes(config) == {"train": 4, "families_validation": 128}


def test_endless_training_tasks_are_not_evaluated(tmp_path: Path) -> None:
    Scripted.play({HELDOUT: [1]})
    config = small_config(tmp_path, [A], *FRESH)
    sets = load_sets(config)
    assert isinstance(sets["train"], FreshTasks)
    assert list(evaluated(sets, config.eval)) == ["heldout"]
    assert run_evaluation(config, tmp_path / "scores.json") == 0
    assert "train" not in json.loads((tmp_path / "scores.json").read_text("utf-8"))


def test_a_held_out_task_is_never_made_for_training(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], *FRESH, *ONE_STEP)
    first = load_sets(config)["train"][0]
    held_out = select(tmp_path / "made.json", "desk:fresh", [first.id])
    sets = load_sets(small_config(tmp_path, [A], *FRESH, *ONE_STEP, f"--tasks.heldout={held_out}"))
    assert [task.content for task in sets["heldout"]] == [first.content]
    assert first.content not in {task.content for task in sets["train"]}


def test_rollouts_by_set_and_training_tasks_left_out(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A], "--eval.rollouts=0", "--eval.heldout_rollouts=3")
    counts = [rollouts_of(name, config.eval) for name in ("train", "heldout", "families_test", "overall")]
    assert counts == [0, 3, 3, 1]
    assert list(evaluated(load_sets(config), config.eval)) == ["heldout"]


def test_desk_sets_are_refused_for_another_environment() -> None:
    config = load_config(
        "desk", ["--env.name=osworld", "--tasks.train=t.json", "--tasks.heldout=a.json,desk:test"]
    )
    with pytest.raises(UserError, match=r"tasks.heldout = 'a.json,desk:test': tasks of Desk"):
        load_sets(config)


def test_the_first_and_the_last_tenth_of_the_batches() -> None:
    lines: list[dict[str, float | None]] = [{"step": 0, "eval_heldout": 0.5}]
    lines += [{"step": step, "episodes": 8 * step, "success": step / 32} for step in range(1, 21)]
    # Batches 1 and 2: 0.25 + 0.5 successes of 8, rounded; 19 and 20: 4.75 + 5.
    assert training_episodes(lines) == {"batches": 2, "first": [0, 16], "last": [10, 16]}
    lines = [{"step": 1, "episodes": 4, "success": 0.5}, {"step": 2, "episodes": 4, "success": None}]
    assert training_episodes(lines) == {}  # the second batch has no episodes
    assert training_episodes([*lines, {"step": 3, "episodes": 12, "success": 0.25}]) == {
        "batches": 1,
        "first": [2, 4],
        "last": [2, 8],
    }


def test_a_set_cannot_take_the_name_of_another_curve_of_a_comparison(tmp_path: Path) -> None:
    assert set(CURVES) <= set(RESERVED)
    config = small_config(tmp_path, [A], f"--tasks.heldout={tmp_path}/rescued.json,{tmp_path}/b.json")
    with pytest.raises(UserError, match=r"the name 'rescued' is reserved for other results: rename the file"):
        load_sets(config)


@pytest.mark.slow
def test_held_out_families_that_the_training_tasks_have_are_noted() -> None:
    config = load_config("desk", ["--tasks.heldout=desk:validation"])
    first, *_ = known_families(load_sets(config))
    assert first.startswith("new goal families (validation): training tasks have goals of these families")
    fresh = load_config("desk", ["--tasks.heldout=desk:validation", *FRESH])
    assert known_families(load_sets(fresh)) == []
    assert known_families(load_sets(load_config("desk"))) == []
