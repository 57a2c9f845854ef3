"""The shipped task lists: equal to the generator's output, solvable and disjoint."""

from __future__ import annotations

import json
from collections import Counter
from importlib.resources import files
from typing import Any

import pytest

from arpo.actions import Fail, Finished
from arpo.config import Config
from arpo.envs.desk.env import set_up, task_score
from arpo.envs.desk.goals import INFEASIBLE
from arpo.envs.desk.random_tasks import random_world, rng_for, solution_length
from arpo.tasks.lists import check_disjoint, load_tasks
from arpo.types import Task
from desks import score, solution
from tools.task_lists import HELDOUT, POOL, make_tasks

LISTS = files("arpo") / "envs" / "desk" / "tasks"


def read(name: str) -> Any:
    return json.loads((LISTS / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def shipped() -> dict[str, tuple[Task, ...]]:
    return {"pool": load_tasks("desk:pool"), "heldout": load_tasks("desk:heldout")}


def families(task: Task) -> list[str]:
    return [goal["family"] for goal in task.evaluator["solution"]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "portions", "size"), [("pool", POOL, 369), ("heldout", HELDOUT, 128)])
def test_the_shipped_list_equals_the_generated_one(name: str, portions: Any, size: int) -> None:
    tasks = read(name)
    assert len(tasks) == size == sum(portion.tasks for portion in portions)
    assert tasks == list(make_tasks(name, portions))


@pytest.mark.slow
def test_every_shipped_task_is_solved_by_its_solver_and_not_by_doing_nothing(
    shipped: dict[str, tuple[Task, ...]],
) -> None:
    lengths = []
    for task in (*shipped["pool"], *shipped["heldout"]):
        desktop = set_up(task)
        steps = solution(task, desktop)
        last = steps[-1][1]
        assert isinstance(last, Fail if set(families(task)) & INFEASIBLE.keys() else Finished)
        assert score(task, desktop, last) == 1.0, task.id
        assert score(task, set_up(task), Finished()) == 0.0, task.id
        assert task_score(task, set_up(task).world, None) == 0.0, task.id
        lengths.append(len(steps))
    assert max(lengths) <= 15 == Config().rollout.max_steps
    assert min(lengths) == 1 and sum(length > 10 for length in lengths) >= 50


def test_a_solutions_length_includes_the_terminal_step() -> None:
    raw = {task["id"]: task for task in read("heldout")}
    by_hand = {task.id: len(solution(task)) for task in load_tasks("desk:heldout")[:30]}
    assert {name: solution_length(raw[name]) for name in by_hand} == by_hand


def test_the_lists_contain_every_family(shipped: dict[str, tuple[Task, ...]]) -> None:
    for tasks in shipped.values():
        kinds = Counter(family for task in tasks for family in families(task))
        assert len(kinds) == 25
        apps = {app for task in tasks for app in task.related_apps}
        assert apps == {"File", "Note", "Mail", "Conf", "Calc", "Web"}
        infeasible = [task for task in tasks if task.evaluator["func"] == "infeasible"]
        assert len(infeasible) >= 6
        assert all(len(families(task)) == 1 for task in infeasible)
        assert len({task.instruction + str(task.config) for task in tasks}) == len(tasks)


def test_the_heldout_tasks_have_other_content(shipped: dict[str, tuple[Task, ...]]) -> None:
    check_disjoint(shipped["pool"], shipped["heldout"])
    worlds = {name: {world_of(task) for task in tasks} for name, tasks in shipped.items()}
    assert [len(found) for found in worlds.values()] == [369, 128]
    assert not worlds["pool"] & worlds["heldout"]


def world_of(task: Task) -> str:
    return json.dumps(task.config[0]["parameters"], sort_keys=True)


def test_pretraining_never_sees_the_world_of_a_shipped_task(
    shipped: dict[str, tuple[Task, ...]],
) -> None:
    name_taken = {world_of(task) for tasks in shipped.values() for task in tasks}
    seen = {json.dumps(random_world(rng_for("pretrain", seed)), sort_keys=True) for seed in range(3000)}
    assert len(seen) == 3000
    assert not seen & name_taken


def test_the_list_of_32_has_tasks_of_middle_difficulty(shipped: dict[str, tuple[Task, ...]]) -> None:
    chosen = read("32")
    assert chosen["source"] == "desk:pool" and len(chosen["tasks"]) == 32
    for name, count in chosen["tasks"].items():
        assert count["rollouts"] == 16 and 6 <= count["successes"] <= 9, name
    check_disjoint(load_tasks("desk:32"), shipped["heldout"])


def test_every_screened_task_was_solved_at_least_once() -> None:
    screened, chosen = read("screened"), read("32")
    counts = screened["tasks"]
    assert screened["source"] == "desk:pool" and 160 <= len(counts) <= 250
    assert all(count["rollouts"] == 16 and count["successes"] >= 1 for count in counts.values())
    rate = sum(count["successes"] for count in counts.values()) / (16 * len(counts))
    assert 0.25 <= rate <= 0.4
    assert 0.1 <= rate * len(counts) / 369 <= 0.2
    assert {name: counts[name] for name in chosen["tasks"]} == chosen["tasks"]


def test_the_list_of_128_has_the_screened_tasks_nearest_to_half_success() -> None:
    screened, chosen = read("screened"), read("128")

    def distance(name: str) -> int:
        return abs(2 * int(screened["tasks"][name]["successes"]) - 16)

    left_out = screened["tasks"].keys() - chosen["tasks"].keys()
    assert len(chosen["tasks"]) == 128 and chosen["tasks"].items() <= screened["tasks"].items()
    assert max(map(distance, chosen["tasks"])) <= min(map(distance, left_out))
    assert chosen["source"] == screened["source"]
