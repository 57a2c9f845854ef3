"""Evaluation: so many rollouts of each task, counted; what could not be carried out is counted apart."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

import verdicts
from arpo.config import EnvConfig, RolloutConfig
from arpo.dialects.ui_tars import UI_TARS_1_5
from arpo.envs.pool import EnvPool, LocalEnvs
from arpo.errors import UserError
from arpo.evaluation.evaluate import evaluate, require_writable, run_evaluation
from arpo.evaluation.scoring import Score, over_same_tasks, report_failures, without_partial_credit
from arpo.reporting.display import Display
from arpo.rollout.agent import Agent
from arpo.rollout.scheduler import Scheduler
from arpo.tasks.lists import load_tasks
from arpo.tasks.sets import load_sets
from arpo.testing import FakeEnv, Times, task
from arpo.types import Failure, Group
from players import CLICK, DONE, RENDERER, TEMPLATE, scripted
from trajectories import group, scored, trajectory
from verdicts import HELDOUT, NO_VS_CODE, A, B, C, Scripted, osworld_config, select, small_config


def test_a_score_counts_verdicts_and_failures() -> None:
    score = Score.of(
        [
            scored(1.0, 0.0, task="a"),
            group(trajectory(0.5, task="b"), index=1, task="b", failures=1),
            group(index=2, task="c", failures=2),
        ]
    )
    assert score.by_task == {"a": (1.0, 0.0), "b": (0.5,), "c": ()}
    assert (score.successes, score.episodes, score.failures, score.rate) == (1.5, 3, 3, 0.5)


def test_tasks_without_a_verdict_have_names() -> None:
    score = Score.of([scored(1.0, task="a"), group(index=1, task="b", failures=2)])
    assert score.without_verdict == ("b",)


def test_an_evaluation_lists_the_tasks_without_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({B: [1, 1]})
    config = small_config(tmp_path, [A, B], "--eval.rollouts=2", "--env.attempts=1", env="Fragile")
    assert run_evaluation(config, tmp_path / "scores.json") == 0
    assert json.loads((tmp_path / "scores.json").read_text("utf-8"))["train"]["without_verdict"] == [A]
    shown = capsys.readouterr().out
    assert "eval, train tasks: no verdict on 1 of 2 tasks, because all their episodes failed." in shown
    assert f"The success rate leaves them out: {A}" in shown


def test_without_an_output_file_the_rates_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1], B: [0]})
    assert run_evaluation(small_config(tmp_path, [A, B], "--tasks.heldout="), None) == 0
    shown = capsys.readouterr().out
    assert "eval, train tasks: 50.0% (1/2)\n" in shown
    assert shown.endswith("not stored: --out FILE writes the scores of each task\n")


def test_domains_have_rates_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of tasks that are not Desk's: their snapshot names no goal family."""
    pool = {task.id: asdict(task) for task in load_tasks("desk:pool")}
    tasks = [
        {**pool[name], "snapshot": "mine", "domain": domain}
        for name, domain in ((A, "click-link"), (B, "click-test"))
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    Scripted.play({A: [1, 0], B: [0, 0]})
    settings = f"--tasks.train={tmp_path / 'tasks.json'}", "--tasks.heldout=", "--eval.rollouts=2"
    assert run_evaluation(small_config(tmp_path, [A, B], *settings), None) == 0
    shown = capsys.readouterr().out
    assert "training tasks, click-link: 50.0% (1/2)\n" in shown
    assert "training tasks, click-test: 0.0% (0/2)\n" in shown


def test_two_evaluations_have_rates_over_the_tasks_with_a_verdict_in_both() -> None:
    before = {"train": Score(by_task={"a": (1.0, 1.0), "b": (0.0, 1.0), "c": ()}, failures=2)}
    after = {"train": Score(by_task={"a": (), "b": (1.0, 1.0), "c": (0.0, 0.0)}, failures=2)}
    first, second = over_same_tasks(before, after | {"overall": Score(by_task={"x": (1.0,)}, failures=0)})
    assert (first["train"].rate, second["train"].rate) == (0.5, 1.0)
    assert (first["train"].episodes, second["train"].episodes) == (2, 2)
    assert first["train"].left_out == second["train"].left_out == {"a", "c"}
    assert first["train"].by_task == before["train"].by_task
    assert second["overall"].rate == 1.0
    same, other = over_same_tasks(before, before)
    assert same["train"].rate == other["train"].rate == before["train"].rate == 0.75


def test_part_of_the_way_is_worth_nothing_where_it_is_measured() -> None:
    played = scored(1, 0.4, 0.1, 0)
    assert Score.of([without_partial_credit(played, 0.4)]).by_task == {"t": (1, 0, 0, 0)}
    assert without_partial_credit(played, 0.0) == played


def test_what_could_not_be_carried_out_has_no_rate() -> None:
    score = Score.of([group(task="a", failures=2)])
    assert (score.successes, score.episodes, score.failures) == (0, 0, 2)
    assert math.isnan(score.rate)


def test_tasks_are_played_as_often_and_as_cold_as_asked_for() -> None:
    engine = scripted([CLICK, DONE])
    settings = RolloutConfig(group_size=2, temperature=1.0)
    scheduler = Scheduler(
        pool=EnvPool(LocalEnvs(FakeEnv, 4), EnvConfig(width=56, height=56)),
        agent=Agent(engine=engine, renderer=RENDERER, template=TEMPLATE, dialect=UI_TARS_1_5),
        settings=settings,
        seed=0,
    )
    heard: list[int] = []
    groups = asyncio.run(
        evaluate(
            scheduler,
            [(0, task("a")), (4, task("b"))],
            name="look",
            rollouts=3,
            temperature=0.25,
            on_episode=lambda index, outcome: heard.append(index),
        )
    )
    assert {sampling.temperature for sampling in engine.samplings} == {0.25}
    assert sorted(heard) == [0, 0, 0, 4, 4, 4]
    assert [(played.index, played.task_id) for played in groups] == [(0, "a"), (4, "b")]
    assert [played.episode_id for played in groups[1].trajectories] == ["look-4-0", "look-4-1", "look-4-2"]
    assert scheduler.settings is settings


def test_the_verdicts_of_both_sets_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Scripted.play({A: [1, 0, 0.5], B: [1, 1, 1], HELDOUT: [0, 1]})
    rollouts = ("--eval.rollouts=3", "--eval.heldout_rollouts=2")
    out = tmp_path / "new" / "folder" / "scores.json"
    config = small_config(tmp_path, [A, B], *rollouts)
    assert run_evaluation(config, out) == 0
    written = json.loads(out.read_text("utf-8"))
    assert (written["model"], written["temperature"]) == (config.model.path, 0.6)
    assert written["train"].pop("tasks").keys() == {A, B}
    assert written["train"] == {
        "success": 0.75,
        "successes": 4.5,
        "episodes": 6,
        "failures": 0,
        "without_verdict": [],
    }
    assert written["heldout"]["success"] == 0.5
    assert sorted(written["heldout"]["tasks"][HELDOUT]) == [0.0, 1.0]
    said = capsys.readouterr().out.splitlines()
    assert "eval, train tasks: 75.0% (4.5/6)" in said
    assert said[-1] == f"written to {out}"


def test_failures_of_an_evaluation_are_written_as_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.play({A: [1], B: [1]})
    monkeypatch.setattr(verdicts.Chaos, "steps", Times(1))
    out = tmp_path / "scores.json"
    config = small_config(tmp_path, [A, B], "--env.attempts=1", env="failing_at_first")
    assert run_evaluation(config, out) == 0
    train = json.loads(out.read_text("utf-8"))["train"]
    counts = {name: train[name] for name in ("success", "episodes", "failures")}
    assert counts == {"success": 1.0, "episodes": 1, "failures": 1}


def test_an_evaluation_in_which_nothing_can_be_played_is_none(tmp_path: Path) -> None:
    out = tmp_path / "scores.json"
    with pytest.raises(UserError, match=r"all 1 episode failed\. First failure: task pool-001, evaluate"):
        run_evaluation(small_config(tmp_path, [A], "--env.attempts=1", env="lying"), out)
    assert not out.exists()


def test_an_out_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is a folder\. Name a file in it"):
        run_evaluation(small_config(tmp_path, [A]), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot create its folder"):
        require_writable(tmp_path / "file" / "below" / "scores.json")


def test_the_two_sets_must_not_meet(tmp_path: Path) -> None:
    assert [len(tasks) for tasks in load_sets(small_config(tmp_path, [A, B])).values()] == [2, 1]
    with pytest.raises(UserError, match=f"held-out task '{A}' is also training task '{A}'"):
        load_sets(small_config(tmp_path, [A], "--tasks.heldout=desk:pool"))


def test_nothing_need_be_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Scripted.play({A: [1]})
    config = small_config(tmp_path, [A], "--tasks.heldout=")
    assert load_sets(config)["heldout"] == ()
    assert run_evaluation(config, tmp_path / "scores.json") == 0
    written = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    assert (written["train"]["success"], written["heldout"]["success"]) == (1.0, None)
    assert "heldout" not in capsys.readouterr().out


def test_tasks_are_chosen_from_both_sets(tmp_path: Path) -> None:
    def chosen(*overrides: str) -> list[list[str]]:
        sets = load_sets(small_config(tmp_path, [A, B], *overrides))
        return [[task.id for task in tasks] for tasks in sets.values()]

    assert chosen(f"--tasks.ids={B},{HELDOUT}") == [[B], [HELDOUT]]
    assert chosen(f"--tasks.ids={A}") == [[A], []]
    assert chosen("--tasks.domains=File") == [[A, B], []]
    with pytest.raises(UserError, match=r"only held-out tasks are left\. Choose training tasks too"):
        chosen(f"--tasks.ids={HELDOUT}")
    with pytest.raises(UserError, match=r"tasks.ids: no task 'pool-999'"):
        chosen("--tasks.ids=pool-999")


def test_a_third_set_may_share_tasks_with_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1, 1], B: [0], HELDOUT: [1]})
    overall = select(tmp_path / "overall.json", "desk:pool", [A, B])
    config = small_config(tmp_path, [A], f"--tasks.overall={overall}")
    assert {which: len(tasks) for which, tasks in load_sets(config).items()} == {
        "train": 1,
        "heldout": 1,
        "overall": 2,
    }
    assert run_evaluation(config, tmp_path / "scores.json") == 0
    written = json.loads((tmp_path / "scores.json").read_text("utf-8"))
    assert written["train"]["tasks"] == {A: [1.0]}
    assert written["overall"]["tasks"] == {A: [1.0], B: [0.0]}
    assert "eval, overall tasks: 50.0% (1/2)" in capsys.readouterr().out


def test_where_no_task_of_the_third_set_is_chosen_there_is_none(tmp_path: Path) -> None:
    overall = select(tmp_path / "overall.json", "desk:pool", [B])
    config = small_config(tmp_path, [A], f"--tasks.overall={overall}", f"--tasks.ids={A}")
    assert load_sets(config).keys() == {"train", "heldout"}


def test_tasks_that_cannot_run_are_left_out_and_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1], B: [1], C: [1]})
    config = osworld_config(monkeypatch, tmp_path, {A: "vscode", B: "os", C: "vs_code"})
    out = tmp_path / "scores.json"
    assert run_evaluation(config, out) == 0
    written = json.loads(out.read_text("utf-8"))
    assert written["train"]["tasks"] == {B: [1.0]}
    assert written["skipped"] == {
        A: NO_VS_CODE,
        C: NO_VS_CODE,
    }
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"skipping 2 tasks that cannot run here. {out} has all reasons:"
    assert said[1] == f"  {A}: {NO_VS_CODE}"


def test_where_no_task_can_run_nothing_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = osworld_config(monkeypatch, tmp_path, {A: "vscode", B: "vscode"})
    with pytest.raises(
        UserError, match=f"none of the 2 train tasks can run here; the first, {A}: needs VS Code"
    ):
        run_evaluation(config, tmp_path / "scores.json")
    assert not (tmp_path / "scores.json").exists()


def test_the_advice_names_the_engine_if_the_engine_failed() -> None:
    failure = Failure(
        episode_id="e", task_id="t", kind="EngineError", where="generate", message="boom", attempts=1
    )
    failed = Group(index=0, task_id="t", trajectories=(), failures=(failure,))
    with pytest.raises(UserError, match=r"generate: boom\. Fix the engine, then run"):
        report_failures([failed], Display())
