"""reward.judge: the verdict of a judge in the score of every training episode."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from arpo.cli.entry_point import main
from arpo.config import Config
from arpo.errors import Outage, UserError
from arpo.storage.run_folder import RunFolderReader
from arpo.training.trainer import run_training
from judges import judged_by
from openai_server import MODEL, Served, refuses
from verdicts import A, C, Scripted, select_few, shipped_list, small_config, without_evaluator

VOTES = 3


def config_of(folder: Path, server: Served, weight: float, *overrides: str) -> Config:
    judge = (f"--reward.judge={weight}", f"--server.endpoints={server.url}", f"--server.model={MODEL}")
    return small_config(folder, [A], "--rollout.group_size=2", "--env.parallel=1", *judge, *overrides)


def lines(config: Config, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(config.run.dir) / name).read_text("utf-8").splitlines()]


def scores(config: Config) -> dict[str, float]:
    return {one.episode_id: one.score for one in RunFolderReader(Path(config.run.dir)).episodes()}


def evaluated(config: Config, group: dict[str, Any]) -> list[float | None]:
    """The evaluator's own scores of the episodes of a group."""
    stored = {one.episode_id: one.evaluated for one in RunFolderReader(Path(config.run.dir)).episodes()}
    return [stored[name] for name in group["episodes"]]


def first_episode(text: str, number: int) -> str:
    """Three votes for the first episode, then three against the second one."""
    return "SUCCESS" if number < VOTES else "FAILURE"


@pytest.mark.parametrize(("weight", "expected"), [(1.0, [1.0, 0.0]), (0.25, [0.25, 0.75])])
def test_scores_of_training_episodes_contain_the_verdict(
    tmp_path: Path, weight: float, expected: list[float]
) -> None:
    Scripted.play({A: [0, 0, 1, 0]})  # the first evaluation, the two training episodes, the last evaluation
    with judged_by(first_episode) as server:
        config = config_of(tmp_path, server, weight)
        assert run_training(config) == 0
    (group,) = lines(config, "groups.jsonl")
    assert group["rewards"] == expected
    stored = scores(config)
    assert [stored[name] for name in group["episodes"]] == expected
    assert evaluated(config, group) == [0, 1]
    assert len(server.requests) == 2 * VOTES  # none about evaluations
    assert all(line["sets"]["train"][A] == [0] for line in lines(config, "evaluations.jsonl"))


def test_the_score_of_a_task_without_an_evaluator_is_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({A: [1] * 2})  # never asked for
    with judged_by(first_episode) as server:
        config = config_of(tmp_path, server, 0.25)
        without_evaluator(tmp_path, A)
        assert run_training(config) == 0
        (group,) = lines(config, "groups.jsonl")
        assert group["rewards"] == [1, 0]
        assert evaluated(config, group) == [None, None]
        assert all(list(line["sets"]) == ["heldout"] for line in lines(config, "evaluations.jsonl"))
        words = ["judge", config.run.dir, f"--server.endpoints={server.url}", f"--server.model={MODEL}"]
        main(words)
    said = capsys.readouterr().out
    assert "training tasks with an evaluator: 0 of 1. Most batches do not show" in said
    assert "left out 2 episodes: their tasks have no evaluator" in said


def test_a_training_task_without_an_evaluator_needs_a_judge(tmp_path: Path) -> None:
    config = small_config(tmp_path, [A])
    without_evaluator(tmp_path, A)
    with pytest.raises(UserError, match=f"1 training task without an evaluator, for example {A}: set reward"):
        run_training(config)


@pytest.mark.slow
def test_stored_votes_are_used_again_and_compared_with_the_evaluators_own_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is interrupted before a checkpoint plays the same episodes again."""
    Scripted.play({})  # the evaluator: all episodes fail
    with judged_by(first_episode) as server:
        config = config_of(tmp_path, server, 1.0)
        assert run_training(config) == 0
        again = config_of(tmp_path, server, 1.0, f"--run.dir={tmp_path / 'again'}")
        Path(again.run.dir).mkdir()
        shutil.copy(Path(config.run.dir) / "judgements.jsonl", again.run.dir)
        assert run_training(again) == 0
        assert len(server.requests) == 2 * VOTES
        assert scores(again) == scores(config)
        capsys.readouterr()
        words = ["judge", config.run.dir, f"--server.endpoints={server.url}", f"--server.model={MODEL}"]
        assert main([*words, "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)["verdicts"]
    assert verdicts["success"] == {"success": 0, "failure": 1}  # the verdict of training, against its score
    assert verdicts["failure"] == {"success": 0, "failure": 5}


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_episode_without_a_verdict_has_no_score(tmp_path: Path, staleness: int) -> None:
    def judge(text: str, number: int) -> str:
        return "SUCCESS" if number < VOTES else "I do not know."

    Scripted.play({})
    with judged_by(judge) as server:
        config = config_of(tmp_path, server, 1.0, f"--train.max_staleness={staleness}")
        run_training(config)
    (group,) = lines(config, "groups.jsonl")
    assert (len(group["episodes"]), group["rewards"]) == (1, [1.0])
    (failure,) = lines(config, "failures.jsonl")
    assert (failure["where"], failure["kind"]) == ("judge", "NoVerdict")
    assert "I do not know." in failure["message"]
    assert failure["episode_id"] not in scores(config)


def test_a_judge_that_stops_answering_ends_the_run_before_the_batch_is_trained_on(tmp_path: Path) -> None:
    broken = {"now": True}

    def judge(text: str, number: int) -> str | web.Response:
        return refuses(400, "out of memory") if broken["now"] and number >= 2 * VOTES else "SUCCESS"

    Scripted.play({})
    with judged_by(judge) as server:
        config = config_of(tmp_path, server, 1.0, "--train.epochs=2", "--train.tasks_per_batch=1",
                           "--train.tasks_per_update=1")  # fmt: skip
        with pytest.raises(Outage, match=r"answers no question: no answer: .*out of memory"):
            run_training(config)
        assert len(lines(config, "groups.jsonl")) == 1
        assert len(server.requests) == 4 * VOTES
        broken["now"] = False
        assert run_training(config) == 0
        assert len(server.requests) == 6 * VOTES
    assert [group["rewards"] for group in lines(config, "groups.jsonl")] == [[1, 1], [1, 1]]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_task_that_the_judge_refuses_does_not_end_the_run(tmp_path: Path, staleness: int) -> None:
    """Its episodes fail. A batch has four episodes, two of each task."""

    def judge(text: str, number: int) -> str | web.Response:
        return refuses(400, "too long") if number and instruction in text else "SUCCESS"

    Scripted.play({})
    instruction = shipped_list("pool")[A]["instruction"]
    with judged_by(judge) as server:
        tasks = (f"--tasks.train={select_few(tmp_path / 'both.json', 'pool', [A, C])}",)
        config = config_of(tmp_path, server, 1.0, *tasks, f"--train.max_staleness={staleness}")
        run_training(config)
    groups = {group["task"]: group["rewards"] for group in lines(config, "groups.jsonl")}
    assert groups == {A: [], C: [1, 1]}
    assert [failure["where"] for failure in lines(config, "failures.jsonl")] == ["judge"] * 2


@pytest.mark.slow
def test_a_judge_that_begins_to_say_yes_is_reported_and_fills_no_replay_buffer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five batches of right verdicts on four failures, then four of wrong ones: 16 of 20 against 0 of 16."""

    def judge(text: str, number: int) -> str:
        return "SUCCESS" if number >= 5 * 4 * VOTES else "FAILURE"

    Scripted.play({})
    batches = ("--rollout.group_size=4", "--train.tasks_per_batch=1", "--train.tasks_per_update=1")
    with judged_by(judge) as server:
        config = config_of(tmp_path, server, 1.0, *batches, "--train.epochs=8")
        assert run_training(config) == 0
        assert "drift apart" not in capsys.readouterr().out
        config = config_of(tmp_path, server, 1.0, *batches, "--train.epochs=9")
        assert run_training(config) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "batch 9: judge and evaluators drift apart: in the last 5 batches, 80% of the failures" in output
    metrics = lines(config, "metrics.jsonl")[1:]  # without the first evaluation
    assert [line["judge_false_positives"] for line in metrics] == [0] * 5 + [1] * 4
    assert [line.get("judge_alarm") for line in metrics] == [None] * 8 + [1]
    assert [line["replay_size"] for line in metrics] == [0] * 9


def test_a_run_needs_its_judge(tmp_path: Path) -> None:
    config = config_of(tmp_path, Served(url="http://127.0.0.1:9/v1"), 1.0)
    with pytest.raises(UserError, match="no server answers"):
        run_training(config)
    with pytest.raises(UserError, match=r"reward\.judge: is 1, must be 0 with train\.method = rft"):
        config_of(tmp_path, Served(url="http://127.0.0.1:9/v1"), 1.0, "--train.method=rft")
