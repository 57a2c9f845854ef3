"""OSWorld's own tasks on light desktops, through a host: 1 if solved, 0 if untouched.

The default is one or two tasks per application; FULL=1 runs all tasks with a solution.
"""

import asyncio

import pytest

from osworld_files import osworld_task
from player import score
from solvers import chrome, gimp, impress, os, vlc

SOLUTIONS = {
    f"{domain}/{name}": solution
    for domain, solver in {
        "chrome": chrome,
        "gimp": gimp,
        "libreoffice_impress": impress,
        "os": os,
        "vlc": vlc,
    }.items()
    for name, solution in solver.SOLUTIONS.items()
}
BY_DEFAULT = {
    "chrome/af630914",
    "gimp/d52d6308",
    "libreoffice_impress/2cd43775",
    "os/13584542",
    "os/28cc3b7e",
    "vlc/8ba5ae7a",
    "chrome/3720f614",
}
INFEASIBLE = ("chrome/3720f614", "gimp/fbb548ca", "os/c288e301", "vlc/7882ed6e")


def tasks(names):
    return [pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.full) for name in names]


@pytest.mark.parametrize("name", tasks(SOLUTIONS))
def test_solved_scores_1_and_untouched_0(name, hosts):
    task = osworld_task(name)
    assert asyncio.run(score(hosts, task, SOLUTIONS[name])) == 1.0
    assert asyncio.run(score(hosts, task, [])) == 0.0


@pytest.mark.parametrize("name", tasks(INFEASIBLE))
def test_an_infeasible_task_is_solved_by_fail(name, hosts):
    task = osworld_task(name)
    assert asyncio.run(score(hosts, task, ["error_env()"])) == 1.0
    assert asyncio.run(score(hosts, task, ["finished()"])) == 0.0


def test_solutions_cover_five_applications():
    assert len(SOLUTIONS) >= 20
    assert len({name.partition("/")[0] for name in SOLUTIONS}) >= 5
