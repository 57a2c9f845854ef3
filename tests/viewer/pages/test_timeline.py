"""Times of calls and lanes; hostile lines of calls.jsonl; labels of stages."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from arpo.errors import UserError
from arpo.storage.run_folder import RunFolder
from arpo.viewer.library import Library
from arpo.viewer.pages.timeline import COLUMNS, MAX_ROWS, STAGES, Attempt, assign_lanes, lane_json
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
    episode = opened(folder).answer(["s", "desk", "episodes", "batch-1-0-0"], {})
    first, second, *_ = episode["steps_list"]
    assert first["times"] == {"engine": [0.5, 0.2], "step": [0.7, 0.1]} and first["seconds"] == 0.2
    assert second["times"] == {"engine": [0.8, 0.2], "step": [1.0, 0.1]}
    assert episode["times"] == {"start": [0.0, 0.5], "evaluate": [1.7, 0.05]}


def test_an_answer_without_actions_has_the_time_of_the_answer_alone(folder: Path) -> None:
    last = opened(folder).answer(["s", "desk", "episodes", "batch-2-1-1"], {})["steps_list"][-1]
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
    assert ended["batch-1-2-1"] == ["EnvTimeout", "http://10.0.0.7:8700"]
    assert ended["batch-1-0-0"] == ["", ""]
    second = library.answer(["s", "desk", "lanes", "2"], {})
    assert (second["batch"], second["began"], second["ended"]) == (2, 4.0, 8.0)
    names = {entry[0] for row in second["rows"] for entry in row["episodes"]}
    assert names == {"batch-2-0-0", "batch-2-0-1", "batch-2-1-1", "batch-1-2-1"}
    with pytest.raises(UserError, match="batch 9: has no times yet"):
        library.answer(["s", "desk", "lanes", "9"], {})


def test_a_run_of_an_older_version_has_no_lanes(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    for name in ("calls.jsonl", "token_stats.jsonl"):
        (tmp_path / "desk" / name).unlink()
    library = opened(tmp_path / "desk")
    assert "rows" not in library.answer(["s", "desk", "lanes"], {})
    assert library.answer(["s", "desk", "episodes", "batch-1-0-0"], {})["times"] is None
    assert library.answer(["sources"], {})["sources"][0]["errors"] == []


def test_a_resumed_run_that_truncates_its_log_is_read_again(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    library = opened(tmp_path / "desk")
    store = RunFolder(tmp_path / "desk")
    store.rewind({**store.offsets(), "calls.jsonl": 0})
    store.log_calls({"episode": "batch-1-0-0", "host": "", "fault": ""}, [("start", 7.0, 1.0)])
    store.close()
    while not library.refresh(5.0):
        pass
    assert library.answer(["s", "desk", "episodes", "batch-1-0-0"], {})["times"]["start"] == [7.0, 1.0]


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
    with pytest.raises(ValueError):
        checked_calls({"episode": "e", "calls": calls})


def test_hostile_lines_become_errors_and_the_others_are_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "desk")
    with (tmp_path / "desk" / "calls.jsonl").open("a") as file:
        for line in ({"step": -1, "calls": [["a", 0, 1]]}, {"calls": [["a", 0, 1]]}, {"episode": "x"}, 3):
            file.write(json.dumps(line) + "\n")
    library = opened(tmp_path / "desk")
    assert len(library.answer(["sources"], {})["sources"][0]["errors"]) == 4
    assert library.answer(["s", "desk", "lanes"], {})["lanes"] == 3


@pytest.mark.slow
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


def attempt(began: float, ended: float, host: str = "", name: str = "e", kind: str = "step") -> Attempt:
    return Attempt(episode=name, host=host, fault="", calls=((kind, began, ended - began),))


def test_an_episode_takes_the_first_free_lane() -> None:
    """The third begins when the second ends, the fourth when all others still play."""
    assert assign_lanes([attempt(0, 5), attempt(2, 4), attempt(4, 6), attempt(4.5, 9)]) == [0, 1, 1, 2]
    assert assign_lanes([attempt(4, 6), attempt(0, 3)]) == [0, 0]  # the order of the lines does not matter


def test_each_host_has_lanes_of_its_own() -> None:
    hosts = [attempt(0, 5, "b"), attempt(1, 2, "a"), attempt(1, 5, "b"), attempt(3, 4, "a")]
    assert assign_lanes(hosts) == [1, 0, 2, 0]


def test_a_cell_shows_the_call_that_covers_most_of_it() -> None:
    """Cells of 1 s. Cell 0: start 0.6 s. Cell 1: engine 0.3, step 0.4, idle 0.3. Cell 3: half idle."""
    calls = (("start", 0.0, 0.6), ("engine", 1.0, 0.3), ("step", 1.3, 0.4), ("evaluate", 3.0, 0.5))
    found = lane_json([Attempt(episode="e", host="", fault="", calls=calls)], 0.0, float(COLUMNS))
    [row] = found["rows"]
    assert row["cells"][:5] == "01..." and set(row["cells"][5:]) == {"."}
    assert found["kinds"] == ["start", "step", "evaluate", "engine"]
    assert row["episodes"] == [["e", 0.0, 3.5, "", ""]]
    assert found["engine"][:3] == found["requests"][:3] == [0.0, 0.3, 0.0]


def test_a_long_call_fills_all_of_its_cells_and_is_cut_at_the_window() -> None:
    found = lane_json([attempt(-5, 2.75), attempt(4.25, 1e6)], 0.0, float(COLUMNS))
    assert [row["cells"] for row in found["rows"]] == ["111." + "1" * (COLUMNS - 4)]


def test_the_engine_counts_requests_and_the_time_with_any() -> None:
    """Two requests overlap for half a cell: 1.5 requests, and the cell is busy all the time."""
    both = [attempt(0, 1, kind="engine"), attempt(0.5, 2.25, kind="engine")]
    found = lane_json(both, 0.0, float(COLUMNS))
    assert found["requests"][:4] == [1.5, 1.0, 0.25, 0.0]
    assert found["engine"][:4] == [1.0, 1.0, 0.25, 0.0]


def test_many_lanes_share_rows_which_show_what_most_of_them_do() -> None:
    """1,024 environments in 128 rows of eight. In the first row, five of eight step and three wait."""
    many = [attempt(0, 300, name=str(n), kind="step" if n % 8 < 5 else "engine") for n in range(1024)]
    found = lane_json(many, 0.0, 300.0)
    assert (found["lanes"], found["per_row"], len(found["rows"])) == (1024, 8, MAX_ROWS)
    assert {row["cells"] for row in found["rows"]} == {"1" * COLUMNS}
    assert [len(row["episodes"]) for row in found["rows"]] == [8] * MAX_ROWS
    assert found["requests"][0] == pytest.approx(3 * 128)


def test_a_window_without_episodes_has_no_rows() -> None:
    found = lane_json([], 0.0, 1.0)
    assert found["rows"] == [] and found["engine"] == [0.0] * COLUMNS


def test_every_stage_of_training_has_a_label():
    """Also "judge" of offline methods: a stage without a label has the colour of another one."""
    training = Path(str(files("arpo"))) / "training"
    sources = [path.read_text("utf-8") for path in training.glob("*.py")]
    named = {name for source in sources for name in re.findall(r'timing\.stage\("(\w+)"\):', source)}
    assert named == STAGES.keys()
