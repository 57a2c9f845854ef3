"""Our own desktop tasks on light desktops, through a host: 1 if solved, 0 if untouched."""

import asyncio

import pytest

from arpo.envs.check import check_env
from arpo.envs.remote import LeaseOnStartEnv, add_timeout_slack
from arpo.tasks.lists import load_tasks
from player import score
from solvers import own

TASKS = {task.id: task for name in ("train", "heldout") for task in load_tasks(f"osworld:{name}")}


def test_every_task_has_a_solution():
    assert own.SOLUTIONS.keys() == TASKS.keys()


@pytest.mark.parametrize("name", TASKS)
def test_solved_scores_1_and_untouched_0(name, hosts):
    assert asyncio.run(score(hosts, TASKS[name], own.SOLUTIONS[name])) == 1.0
    assert asyncio.run(score(hosts, TASKS[name], [])) == 0.0


def test_finished_does_not_solve_an_infeasible_task(hosts):
    assert asyncio.run(score(hosts, TASKS["vlc-translate"], ["finished()"])) == 0.0


def test_desktops_on_a_host_pass_the_conformance_suite(hosts, host_config):
    tasks = [TASKS["files-rename"]]
    checks = asyncio.run(check_env(lambda: LeaseOnStartEnv(hosts), tasks, add_timeout_slack(host_config.env)))
    assert [str(check) for check in checks if check.required and not check.ok] == []
