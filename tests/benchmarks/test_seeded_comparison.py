"""The comparison of seeds: its choice of tasks, its teacher and its line of results, with worked numbers."""

import sys
from pathlib import Path

import pytest
from demonstrator import answers
from seeds import choose, summary, write_recipes

from arpo.actions import TERMINAL
from arpo.config.recipe import load_config
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.storage.run_folder import RunFolderReader
from arpo.tasks.lists import load_tasks
from arpo.training.collect import run_collection
from verdicts import A, B, C, D, select_few, small_config

POOL = {task.id: task for task in load_tasks("desk:pool")}


def test_the_answers_of_the_solver_parse_and_end_the_episode() -> None:
    found = list(answers(POOL[A]))
    *steps, last = (UI_TARS_1_5.parse(answer).actions[-1] for answer in found)
    assert steps and isinstance(last, TERMINAL) and not any(isinstance(one, TERMINAL) for one in steps)


def test_never_solved_tasks_are_split_into_training_and_held_out_ones() -> None:
    rows = {name: {"successes": int(name == B), "rollouts": 16} for name in (A, B, C, D)}
    rows["failed"] = {"successes": 0, "rollouts": 0}
    tasks = [POOL[name] for name in (A, B, C, D)]
    train, heldout = choose({"tasks": rows}, tasks, 1, max_steps=15)
    assert len(train) == len(heldout) == 1 and {*train} | {*heldout} < {A, C, D}
    assert [(one.successes, one.rollouts) for one in train.values()] == [(0, 16)]
    with pytest.raises(SystemExit, match="3 tasks were never solved, 4 are needed"):
        choose({"tasks": rows}, tasks, 2, max_steps=15)
    with pytest.raises(SystemExit, match="0 tasks were never solved, 2 are needed"):
        choose({"tasks": rows}, tasks, 1, max_steps=1)  # the solver needs more steps


def test_the_recipes_differ_in_the_use_of_the_teacher(tmp_path: Path) -> None:
    write_recipes(tmp_path, "desk:pool")
    grpo, arpo, seeded, sft = (
        load_config(str(tmp_path / f"{name}.toml")) for name in ("grpo", "arpo", "seeded", "sft")
    )
    taught = str(tmp_path / "taught")
    assert [one.replay.enabled for one in (grpo, arpo, seeded)] == [False, True, True]
    assert (arpo.replay.seeds, seeded.replay.seeds) == ("", taught)
    assert (sft.train.method, sft.offline.source, sft.rollout.group_size) == ("sft", taught, 8)


@pytest.mark.slow
def test_the_solver_teaches_as_an_agent_program(tmp_path: Path) -> None:
    tasks = select_few(tmp_path / "pool.json", "pool", [A])
    teacher = f"{sys.executable} {Path(sys.modules['demonstrator'].__file__ or '')} {tasks}"
    settings = ("--env.name=desk", "--rollout.max_steps=15", f"--rollout.agent={teacher}")
    config = small_config(tmp_path, [A], *settings)
    assert run_collection(config) == 0
    stored = RunFolderReader(Path(config.run.dir)).episodes()
    assert [(one.score, one.malformed) for one in stored] == [(1.0, False)] * 2


def test_the_line_of_results() -> None:
    """Two seeds; before training, one of four episodes on the training tasks succeeds."""

    def run(method: str, seed: int, scores: list[float]) -> dict[str, object]:
        tallies = {"train": {f"t{number}": (score, 1) for number, score in enumerate(scores)}}
        return {"method": method, "seed": seed, "ended": True, "evaluations": [{"tallies": tallies}]}

    difference = {"method": "seeded", "tasks": "train", "mean": 0.1537, "interval": (0.02, 0.28)}
    comparison = {
        "rows": [
            {"name": "base", "success": {}},
            {"name": "seeded", "success": {"train": {"mean": 0.625}}},
        ],
        "differences": [{**difference, "corrected_p": 0.031}],
        "missing": [],
        "runs": [run("arpo", 0, [0, 1]), run("arpo", 1, [0, 0]), run("sft_grpo", 0, [1, 1])],
    }
    assert summary(comparison) == {
        "benchmark": "seeds",
        "seeds": 2,
        "success": {"base": {"train": 25.0}, "seeded": {"train": 62.5}},
        "minus_arpo": {"seeded": {"train": {"points": 15.4, "interval": [2.0, 28.0], "p": 0.031}}},
        "missing": [],
        "goal_15_points": True,
    }
