"""Tasks by source and by id, with those of desk:fresh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config, ReplayConfig, TasksConfig, TrainConfig
from arpo.envs.desk.fresh import FreshTasks
from arpo.errors import UserError
from arpo.tasks.lists import load_counts, load_tasks
from arpo.tasks.sources import TaskIndex, chosen_tasks, is_endless, open_tasks

WITHOUT_REPLAY = ReplayConfig(enabled=False)


def config(count: int = 0, **tasks: Any) -> Config:
    return Config(tasks=TasksConfig(**tasks), train=TrainConfig(tasks=count), replay=WITHOUT_REPLAY)


def test_desk_fresh_has_as_many_tasks_as_the_run_or_tasks_distinct() -> None:
    endless = open_tasks("desk:fresh", config(100, train="desk:fresh"))
    assert isinstance(endless, FreshTasks) and is_endless(endless) and len(endless) == 100
    some = open_tasks("desk:fresh", config(100, train="desk:fresh", distinct=8))
    assert not is_endless(some) and len(some) == 8 and list(some) == endless[:8]


def test_a_list_is_loaded_and_selected_as_before() -> None:
    tasks = chosen_tasks("desk:pool", config(domains="Web"))
    assert {task.domain for task in tasks} == {"Web"} and not is_endless(tasks)
    fresh = chosen_tasks("desk:fresh", config(distinct=20, domains="Web", goals="1"))
    assert {task.snapshot for task in fresh} == {"PlaceOrder"}


@pytest.mark.parametrize(
    ("source", "settings", "says"),
    [
        ("desk:32", {"families": "SetTheme"}, "tasks.families: is for desk:fresh, and the tasks are desk:32"),
        ("desk:32", {"goals": "1"}, "tasks.goals: is for desk:fresh"),
        ("desk:32", {"distinct": 5}, "tasks.distinct: is for desk:fresh"),
        (
            "desk:fresh",
            {"ids": "pool-001", "distinct": 5},
            "tasks.ids: is for task lists, and the tasks are desk:fresh: use tasks.families, or a list",
        ),
        ("desk:fresh", {}, "desk:fresh: its tasks have no end: set tasks.distinct"),
    ],
)
def test_settings_of_the_other_kind_are_refused(source: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as caught:
        open_tasks(source, config(**settings))
    assert str(caught.value).startswith(says)


def test_a_selection_of_fresh_tasks_needs_their_ids_alone(tmp_path: Path) -> None:
    kept = open_tasks("desk:fresh", config(distinct=9))[3:5]
    path = tmp_path / "kept.json"
    counts = {task.id: {"successes": 2, "rollouts": 4} for task in kept}
    path.write_text(json.dumps({"source": "desk:fresh", "tasks": counts}), "utf-8")
    assert list(load_tasks(str(path))) == kept
    assert list(load_counts(str(path))) == [task.id for task in kept]
    path.write_text(json.dumps({"source": "desk:fresh", "tasks": {"pool-001": {}}}), "utf-8")
    with pytest.raises(UserError, match="'pool-001' is no id of desk:fresh: remove it"):
        load_tasks(str(path))


def test_an_index_finds_listed_tasks_and_makes_fresh_ones() -> None:
    tasks = open_tasks("desk:fresh", config(100, train="desk:fresh"))
    heldout = load_tasks("desk:heldout")
    index = TaskIndex(tasks, heldout)
    assert index[tasks[42].id] == tasks[42] and index["heldout-003"] == heldout[3]
    assert tasks[42].id in index and "heldout-003" in index and "pool-001" not in index
    assert index.get("pool-001") is None and tasks[42].id not in TaskIndex(heldout)
    with pytest.raises(KeyError):
        index["pool-001"]
    for other in (
        "fresh-07-1-SetTheme",
        "fresh-7-01-SetTheme",
        "fresh-7-1.0-SetTheme",
        "fresh-7-٣-SetTheme",
        "fresh-7-1-RenameFile",
    ):
        assert index.get(other) is None and other not in index
