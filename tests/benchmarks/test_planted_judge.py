"""The planted judge of the benchmark, its task lists and its line of results."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from noisy_rewards import PlantedJudge, hide_evaluators, result

from arpo.actions import Action, Fail, Finished
from arpo.config import ServerConfig
from arpo.prompts.judge_question import Question
from arpo.storage.judgements import VoteLog
from arpo.tasks.lists import load_tasks
from arpo.testing import screenshot
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
        found = asyncio.run(votes())
    assert found.count(True) / len(found) == pytest.approx(judged, abs=0.05)


def test_the_share_of_the_gain() -> None:
    def run(final: float, alarms: int = 0) -> dict[str, object]:
        rates = {"base": {"train": 0.2, "heldout": None}, "final": {"train": final, "heldout": None}}
        return {"success": rates, "alarms": alarms}

    line = result(
        {"true": [run(0.6), run(0.6)], "raw": [run(0.4), run(0.3)], "corrected": [run(0.5), run(0.6, 2)]}
    )
    assert line["success"]["raw"] == {"train": [20, 35]}
    assert line["share_of_gain"] == {"true": 1, "raw": 0.38, "corrected": 0.88}
    assert line["runs_with_alarms"] == {"true": 0, "raw": 0, "corrected": 1}
