"""Times of calls on the pages of a run, and hostile lines of calls.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arpo.errors import UserError
from arpo.storage.run_folder import RunFolder
from arpo.viewer.library import Library
from arpo.viewer.run_index import checked_calls
from viewed_runs import make_run


def opened(folder: Path) -> Library:
    library = Library([folder])
    while not library.refresh(5.0):
        pass
    return library


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "desk"
    make_run(run)
    return run


def test_each_step_has_the_times_of_its_answer_and_its_actions(folder: Path) -> None:
    """Start 0.5 s, then answers of 0.2 s and actions of 0.1 s, then the evaluation."""
    episode = opened(folder).answer(["s", "desk", "episodes", "batch0-0-0"], {})
    first, second, *_ = episode["steps_list"]
    assert first["times"] == {"engine": [0.5, 0.2], "step": [0.7, 0.1]} and first["seconds"] == 0.2
    assert second["times"] == {"engine": [0.8, 0.2], "step": [1.0, 0.1]}
    assert episode["times"] == {"start": [0.0, 0.5], "evaluate": [1.7, 0.05]}


def test_an_answer_without_actions_has_the_time_of_the_answer_alone(folder: Path) -> None:
    last = opened(folder).answer(["s", "desk", "episodes", "batch1-1-1"], {})["steps_list"][-1]
    assert last["times"]["engine"][1] == 0.2 and last["times"]["step"] is None


def test_an_episode_without_stored_times_says_so(folder: Path) -> None:
    episode = opened(folder).answer(["s", "desk", "episodes", "eval0-train-0-0"], {})
    assert episode["times"] is None and {step["times"] for step in episode["steps_list"]} == {None}


def test_the_lanes_of_a_run_and_of_a_batch(folder: Path) -> None:
    """Two environments here and one on a host play batch 1 in the first 3 s, batch 2 from second 4 on."""
    library = opened(folder)
    whole = library.answer(["s", "desk", "lanes"], {})
    assert (whole["batch"], whole["lanes"], whole["began"], whole["ended"]) == (None, 3, 0.0, 8.0)
    assert whole["batches"] == [
        {"batch": 1, "began": 0.0, "ended": 4.0},
        {"batch": 2, "began": 4.0, "ended": 8.0},
    ]
    assert [name for name, *_ in whole["learner"]] == ["rollout", "learn", "rollout", "learn"]
    ended = {entry[0]: entry[3:] for row in whole["rows"] for entry in row["episodes"]}
    assert ended["batch0-2-1"] == ["EnvTimeout", "http://10.0.0.7:8700"]
    assert ended["batch0-0-0"] == ["", ""]
    second = library.answer(["s", "desk", "lanes", "2"], {})
    assert (second["batch"], second["began"], second["ended"]) == (2, 4.0, 8.0)
    names = {entry[0] for row in second["rows"] for entry in row["episodes"]}
    assert names == {"batch1-0-0", "batch1-0-1", "batch1-1-1", "batch0-2-1"}
    with pytest.raises(UserError, match="batch 9: has no times yet"):
        library.answer(["s", "desk", "lanes", "9"], {})


def test_a_run_of_an_older_version_has_no_lanes(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    for name in ("calls.jsonl", "token_stats.jsonl"):
        (tmp_path / "desk" / name).unlink()
    library = opened(tmp_path / "desk")
    assert "rows" not in library.answer(["s", "desk", "lanes"], {})
    assert library.answer(["s", "desk", "episodes", "batch0-0-0"], {})["times"] is None
    assert library.answer(["sources"], {})["sources"][0]["errors"] == []


def test_a_resumed_run_that_truncates_its_log_is_read_again(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    library = opened(tmp_path / "desk")
    store = RunFolder(tmp_path / "desk")
    store.rewind({**store.offsets(), "calls.jsonl": 0})
    store.log_calls({"episode": "batch0-0-0", "host": "", "fault": ""}, [("start", 7.0, 1.0)])
    store.close()
    while not library.refresh(5.0):
        pass
    assert library.answer(["s", "desk", "episodes", "batch0-0-0"], {})["times"]["start"] == [7.0, 1.0]


@pytest.mark.parametrize(
    "calls",
    [
        None,
        {},
        [["start", 0.0]],
        [["start", -1.0, 1.0]],
        [["start", 0.0, 1e12]],
        [["start", 0.0, None]],
        [[3, 0.0, 1.0]],
        [["start", 0.0, 2.0], ["step", 1.0, 1.0]],
        [["start", 0.0, 1.0]] * 20_001,
    ],
)
def test_hostile_calls_are_refused(calls: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        checked_calls({"calls": calls})


def test_hostile_lines_become_errors_and_the_others_are_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    with (tmp_path / "desk" / "calls.jsonl").open("a") as file:
        for line in ({"step": -1, "calls": [["a", 0, 1]]}, {"calls": [["a", 0, 1]]}, {"episode": "x"}, 3):
            file.write(json.dumps(line) + "\n")
    library = opened(tmp_path / "desk")
    assert len(library.answer(["sources"], {})["sources"][0]["errors"]) == 4
    assert library.answer(["s", "desk", "lanes"], {})["lanes"] == 3


def test_the_size_of_the_lanes_is_limited(tmp_path: Path) -> None:
    """Names of 1 MiB: the first 7 fit into 8 MiB, after 8 attempts of some hundred bytes."""
    make_run(tmp_path / "desk")
    with (tmp_path / "desk" / "calls.jsonl").open("a") as file:
        for number in range(10):
            name = f"{number}" + "x" * (1 << 20)
            file.write(json.dumps({"episode": name, "calls": [["start", 4.0 + number, 0.5]]}) + "\n")
    whole = opened(tmp_path / "desk").answer(["s", "desk", "lanes"], {})
    assert (whole["batch"], whole["complete"]) == (2, True)  # 4 s to 8 s
    with (tmp_path / "desk" / "calls.jsonl").open("a") as file:
        for _ in range(4):
            file.write(json.dumps({"episode": "y" * (1 << 20), "calls": [["start", 5.0, 0.5]]}) + "\n")
    whole = opened(tmp_path / "desk").answer(["s", "desk", "lanes"], {})
    names = [entry[0] for row in whole["rows"] for entry in row["episodes"]]
    assert not whole["complete"] and max(map(len, names)) == 200
    assert len([name for name in names if len(name) == 200]) == 7
