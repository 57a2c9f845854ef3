"""The planted judge of the benchmark, its task lists and its line of results."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from noisy_rewards import METHODS, PlantedJudge, Series, hide_evaluators, prepare, result, train

from arpo.actions import Action, Fail, Finished
from arpo.config import ServerConfig
from arpo.prompts.judge_question import Question
from arpo.storage.judgements import VoteLog
from arpo.tasks.lists import load_tasks
from arpo.testing import screenshot
from arpo.training import judged_scores
from trajectories import trajectory


def test_every_fourth_task_keeps_its_evaluator(tmp_path: Path) -> None:
    tasks, path = load_tasks("desk:32")[:8], tmp_path / "tasks.json"
    for audited, expected in ((4, [True, False, False, False] * 2), (0, [False] * 8)):
        hide_evaluators(tasks, path, audited)
        written = load_tasks(str(path))
        assert [one.has_evaluator for one in written] == expected
        assert [replace(one, evaluator={}, domain="") for one in written] == [
            replace(one, evaluator={}, domain="") for one in tasks
        ]


@pytest.mark.parametrize(("action", "judged"), [(Finished(), 0.2), (Fail(), 0.9)])
def test_the_planted_judge_has_the_stated_error_rates(tmp_path: Path, action: Action, judged: float) -> None:
    """The task cannot be done, so only `Fail` is right. The judge finds that out itself: the score is 0."""
    [impossible, *_] = [task.id for task in load_tasks("desk:pool") if task.evaluator["func"] == "infeasible"]
    played = trajectory(0, task=impossible)
    played = replace(played, turns=(replace(played.turns[0], actions=(action,)),), final=screenshot(9))

    async def votes() -> list[bool | None]:
        names = [f"batch-1-0-{number}" for number in range(500)]
        asked = [
            Question(instruction="", episode=replace(played, episode_id=one), screenshots=2) for one in names
        ]
        return [(await judge.ask(one, 3))[0].success for one in asked]

    with closing(VoteLog(tmp_path)) as log:
        judge = PlantedJudge(ServerConfig(), log)
        judge.tasks = {task.id: task for task in load_tasks("desk:pool")}
        found = asyncio.run(votes())
    assert found.count(True) / len(found) == pytest.approx(judged, abs=0.05)


@pytest.mark.parametrize("method", ["base", *METHODS])
def test_a_run_with_a_judge_alone_is_measured_by_the_evaluators(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged_scores, "Judge", judged_scores.Judge)  # `train` replaces it: back at the end
    settings = {
        "run.threads": 1, "tasks.ids": "pool-023,pool-040", "env.parallel": 4,
        "rollout.group_size": 2, "rollout.max_steps": 2, "train.epochs": 1, "train.tasks_per_batch": 2,
        "train.tasks_per_update": 2, "eval.rollouts": 2, "store.tensorboard": "false",
    }  # fmt: skip
    series = Series(
        out=tmp_path,
        tasks="desk:128",
        heldout="",
        settings=[f"--{key}={value}" for key, value in settings.items()],
    )
    prepare(series, [method])
    run = train(series, method, 0)
    assert list(run["success"]) == ["train"] and 0 <= run["success"]["train"] <= 1
    assert run["without_verdict"] == 0


def test_the_share_of_the_gain() -> None:
    def run(success: float, alarms: int = 0) -> dict[str, object]:
        return {"success": {"train": success, "heldout": success / 2}, "alarms": alarms}

    runs = {"base": [run(0.2), run(0.2)], "true": [run(0.6), run(0.6)], "raw": [run(0.4), run(0.3)]}
    line = result(runs | {"corrected": [run(0.5), run(0.6, 2)]})
    assert line["success"]["raw"] == {"train": 35, "heldout": 17.5}
    assert line["share_of_gain"] == {"true": 1, "raw": 0.38, "corrected": 0.88}
    assert line["runs_with_alarms"] == {"true": 0, "raw": 0, "corrected": 1}
