"""The held-out sets of Desk: what each level contains, and that no set shares a task with another source."""

from __future__ import annotations

import hashlib
import json

import pytest

from arpo.config import RolloutConfig
from arpo.config.task_set_names import GENERATED, LEVELS
from arpo.envs.desk.env import set_up
from arpo.envs.desk.fresh import FreshTasks, open_goal_mix
from arpo.envs.desk.goals import FAMILIES, INFEASIBLE
from arpo.envs.desk.heldout import (
    APPLICATION_FAMILIES,
    HELDOUT_APPLICATIONS,
    HELDOUT_FAMILIES,
    TRAINING_FAMILIES,
    heldout_tasks,
)
from arpo.errors import UserError
from arpo.tasks.lists import load_counts, load_tasks
from arpo.types import Task
from desks import score, solution

OWN = {
    "instances": TRAINING_FAMILIES,
    "families": HELDOUT_FAMILIES,
    "applications": APPLICATION_FAMILIES,
    # SendFileText alone takes nearly all steps of an episode.
    "long": [name for name in TRAINING_FAMILIES if name not in (*INFEASIBLE, "SendFileText")],
}


def families(task: Task) -> set[str]:
    return set(task.snapshot.split("+"))


def windows(task: Task) -> set[str]:
    return {step["parameters"]["app"] for step in task.config if step["type"] == "open"}


@pytest.mark.parametrize("source", [source for source in GENERATED if source.endswith("/validation")])
def test_a_set_has_goals_of_its_level(source: str) -> None:
    tasks, level = load_tasks(source), GENERATED[source].partition("_")[0]
    assert [task.id for task in tasks] == [f"{GENERATED[source]}-{number:03d}" for number in range(128)]
    assert [len(families(task)) for task in tasks] == ([2, 3] if level == "long" else [1, 2]) * 64
    assert level != "long" or all(len(task.related_apps) > 1 for task in tasks)
    for task in tasks:
        assert families(task) & set(OWN[level]), task.id
        assert families(task) <= {*TRAINING_FAMILIES, *OWN[level]}, task.id
    assert {name for task in tasks for name in families(task)} >= set(OWN[level])
    held_out = {app for task in tasks for app in windows(task)} & set(HELDOUT_APPLICATIONS)
    assert bool(held_out) == (level == "applications")
    assert load_counts(source) == {}


@pytest.mark.parametrize("level", LEVELS)
def test_quick_sets_are_the_first_tasks_of_the_validation_half(level: str) -> None:
    assert heldout_tasks(f"desk:{level}/quick") == heldout_tasks(f"desk:{level}/validation")[:64]


@pytest.mark.parametrize("level", LEVELS)
def test_the_solver_finishes_the_tasks(level: str) -> None:
    for task in heldout_tasks(f"desk:{level}/validation")[::8]:
        desktop = set_up(task)
        steps = solution(task, desktop)
        assert score(task, desktop, steps[-1][1]) == 1.0, task.id
        assert len(steps) <= RolloutConfig().max_steps


@pytest.mark.slow
def test_no_set_shares_a_task_with_another_one_or_with_a_stream() -> None:
    sets = [task for source in GENERATED if not source.endswith("quick") for task in heldout_tasks(source)]
    lists = [task for name in ("pool", "heldout") for task in load_tasks(f"desk:{name}")]
    mix = open_goal_mix("", "1,2")
    stream = FreshTasks(mix, seed=0, count=300, max_steps=15, endless=True)[:]
    contents = {task.content for task in (*sets, *lists, *stream)}
    assert len(contents) == len(sets) + len(lists) + len(stream) == 8 * 128 + 369 + 128 + 300


DIGESTS = {
    "validation": ("72363549cae0", "1cf263a6d771", "e845144dfbc7", "f9adeeef1123"),
    "test": ("164f6a530a41", "99e1dad0fa06", "2c5f50c5a774", "3be6531652d6"),
}


@pytest.mark.parametrize("half", ["validation", pytest.param("test", marks=pytest.mark.slow)])
def test_the_sets_stay_the_same(half: str) -> None:
    """Success rates on a set compare only if every version of the generator makes the same tasks."""
    contents = [[task.content for task in heldout_tasks(f"desk:{level}/{half}")] for level in LEVELS]
    found = [hashlib.sha256(json.dumps(each).encode()).hexdigest()[:12] for each in contents]
    assert found == [*DIGESTS[half]]


def test_unknown_sets_are_errors_with_a_list() -> None:
    with pytest.raises(UserError, match=r"desk:instances/all: no such shipped task list; the lists are: .*, "
                       r"desk:instances/validation, desk:instances/test, "):  # fmt: skip
        load_tasks("desk:instances/all")


def test_a_stream_skips_candidates_with_the_content_of_a_held_out_task() -> None:
    stream = FreshTasks(open_goal_mix("", "1"), seed=3, count=5, max_steps=15, endless=True)
    first, second = stream[0], stream[1]
    other = stream.without([first])
    assert other[0] != first and other[0].id.startswith("fresh-3-0.1-")
    assert other[1] == second and stream[0] == first


def test_every_family_is_in_exactly_one_part() -> None:
    parts = (*TRAINING_FAMILIES, *HELDOUT_FAMILIES, *APPLICATION_FAMILIES)
    assert sorted(parts) == sorted(FAMILIES)
    assert (len(TRAINING_FAMILIES), len(HELDOUT_FAMILIES), len(APPLICATION_FAMILIES)) == (17, 4, 4)


def test_training_families_use_no_held_out_application() -> None:
    assert {FAMILIES[name].app for name in TRAINING_FAMILIES} == {"Conf", "File", "Note", "Mail", "Web"}
    assert APPLICATION_FAMILIES == ("PutValue", "ClearCell", "SumColumn", "CopyValue")
