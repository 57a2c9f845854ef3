"""Lanes of the timeline, with cells worked out by hand."""

from __future__ import annotations

import pytest

from arpo.viewer.pages.timeline import COLUMNS, MAX_ROWS, Attempt, assign_lanes, lane_json


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
