"""calls.jsonl: times of calls and stages, in seconds since the start of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config
from arpo.errors import UserError
from arpo.rollout.activity import EpisodeCalls
from arpo.storage.run_folder import RunFolder
from arpo.training.collect import run_collection
from arpo.training.reporting import CallLog, logged_seconds
from arpo.training.trainer import Trainer
from trained import lines, train_to_end
from verdicts import A, B, Scripted, small_config

CALLS = ["start", "engine", "step", "evaluate"]  # of an episode of one step


def test_times_count_from_the_start_of_the_run(tmp_path: Path) -> None:
    """The run is resumed at second 100 of its age, when the clock shows 7."""
    moments = iter([7.0])
    store = RunFolder(tmp_path)
    log = CallLog(store, 100.0, clock=lambda: next(moments))
    calls = (("start", 8.0, 0.50004), ("engine", 9.5, 2.0))
    log.add_episode(
        EpisodeCalls(episode_id="batch3-0-1", host="http://a:8700", fault="EnvTimeout", calls=calls)
    )
    log.add_stages(4, [("rollout", 7.5, 30.0)])
    assert logged_seconds(store) == 130.5
    store.close()
    found = [json.loads(line) for line in (tmp_path / "calls.jsonl").read_text("utf-8").splitlines()]
    assert found == [
        {
            "episode": "batch3-0-1",
            "host": "http://a:8700",
            "fault": "EnvTimeout",
            "calls": [["start", 101.0, 0.5], ["engine", 102.5, 2.0]],
        },
        {"step": 4, "calls": [["rollout", 100.5, 30.0]]},
    ]


def test_a_new_folder_has_no_logged_seconds(tmp_path: Path) -> None:
    store = RunFolder(tmp_path)
    assert logged_seconds(store) == 0.0
    store.close()


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    store = RunFolder(tmp_path)
    (tmp_path / "calls.jsonl").write_text('{"step":1,"calls":[]}\n{"step":2}\n')
    with pytest.raises(UserError, match=r"calls\.jsonl: line 2: damaged"):
        logged_seconds(store)
    store.close()


def by_episode(config: Config) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for line in lines(config, "calls.jsonl"):
        if "episode" in line:
            found.setdefault(line["episode"], []).append(line)
    return found


def stages(config: Config) -> list[tuple[int, list[str]]]:
    return [
        (line["step"], [name for name, *_ in line["calls"]])
        for line in lines(config, "calls.jsonl")
        if "step" in line
    ]


def assert_in_order(config: Config) -> None:
    """No call begins before the one before it has ended, also across a resume."""
    for attempts in by_episode(config).values():
        for attempt in attempts:
            end = 0.0
            for _, began, seconds in attempt["calls"]:
                assert began >= end - 2e-4 and seconds >= 0  # each number is rounded
                end = began + seconds


@pytest.mark.parametrize("staleness", [0, 1])
def test_every_episode_and_every_stage_of_a_run_is_timed(tmp_path: Path, staleness: int) -> None:
    """Stopped after one epoch and resumed; evaluations are timed, too."""
    Scripted.play({A: [0, 1] * 9, B: [1, 0] * 9})
    for epochs in (1, 2):
        settings = (f"--train.max_staleness={staleness}", "--env.parallel=4", f"--train.epochs={epochs}")
        config = small_config(tmp_path, [A, B], *settings, "--eval.every=1")
        train_to_end(Trainer, config)
    found = by_episode(config)
    played = {episode["episode_id"] for episode in lines(config, "trajectories.jsonl")}
    assert played <= found.keys()
    for attempts in found.values():
        [attempt] = attempts
        assert [name for name, *_ in attempt["calls"]] == CALLS
        assert (attempt["host"], attempt["fault"]) == ("", "")
    assert_in_order(config)
    rollouts = "wait" if staleness else "rollout"
    base, first, *_, last = stages(config)
    assert base == (0, ["evaluate"])
    assert first == (1, ["save", rollouts, "learn", "evaluate"])
    assert last[0] == 2 and last[1][-3:] == [rollouts, "learn", "evaluate"]
    begins = [line["calls"][0][1] for line in lines(config, "calls.jsonl") if "step" in line]
    assert begins == sorted(begins) and begins[0] >= 0


def test_each_attempt_at_an_episode_is_timed(tmp_path: Path) -> None:
    Scripted.play({})
    settings = ("--env.attempts=2", "--env.quarantine_after=99")
    config = small_config(tmp_path, [A, B], *settings, env="Fragile")
    train_to_end(Trainer, config)
    attempts = by_episode(config)["batch0-0-0" if "batch0-0-0" not in played_ids(config) else "batch0-1-0"]
    assert [(one["fault"], [name for name, *_ in one["calls"]]) for one in attempts] == [
        ("EnvError", CALLS[:3]),
        ("EnvError", CALLS[:3]),
    ]


def played_ids(config: Config) -> set[str]:
    return {episode["episode_id"] for episode in lines(config, "trajectories.jsonl")}


def test_collected_episodes_are_timed(tmp_path: Path) -> None:
    Scripted.play({})
    config = small_config(tmp_path, [A, B])
    assert run_collection(config) == 0
    assert {name: len(found) for name, found in by_episode(config).items()} == {
        f"collect-{number}-0": 1 for number in range(4)
    }
    assert_in_order(config)
