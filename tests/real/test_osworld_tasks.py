"""OSWorld's own tasks on light desktops, through a host: 1 if solved, 0 if untouched.

The default is one or two tasks per application; FULL=1 runs all tasks with a solution.
"""

import asyncio
from pathlib import Path

import pytest

import mail_profile
from arpo.envs.osworld.needs import needs
from osworld_files import osworld_task
from player import score
from solvers import chrome, gimp, impress, os, thunderbird, vlc

SOLUTIONS = {
    f"{domain}/{name}": solution
    for domain, solver in {
        "chrome": chrome,
        "gimp": gimp,
        "libreoffice_impress": impress,
        "os": os,
        "thunderbird": thunderbird,
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
    "thunderbird/10a730d5",
    "vlc/8ba5ae7a",
    "chrome/3720f614",
}
INFEASIBLE = ("chrome/3720f614", "gimp/fbb548ca", "os/c288e301", "vlc/7882ed6e")


def add_profile(task, cache):
    """Puts our Thunderbird profile in place of OSWorld's, which is not part of the project."""
    for file in needs(task).files:
        assert file.path.endswith("thunderbird-profile.tar.gz")
        (cache / file.path).parent.mkdir(exist_ok=True)
        (cache / file.path).write_bytes(mail_profile.archive())


def tasks(names):
    return [pytest.param(name, marks=() if name in BY_DEFAULT else pytest.mark.full) for name in names]


@pytest.mark.parametrize("name", tasks(SOLUTIONS))
def test_solved_scores_1_and_untouched_0(name, hosts, host_config):
    task = osworld_task(name)
    add_profile(task, Path(host_config.osworld.cache))
    assert asyncio.run(score(hosts, task, SOLUTIONS[name])) == 1.0
    assert asyncio.run(score(hosts, task, [])) == 0.0


@pytest.mark.parametrize("name", tasks(INFEASIBLE))
def test_an_infeasible_task_is_solved_by_fail(name, hosts):
    task = osworld_task(name)
    assert asyncio.run(score(hosts, task, ["error_env()"])) == 1.0
    assert asyncio.run(score(hosts, task, ["finished()"])) == 0.0


def test_solutions_cover_six_applications():
    assert len(SOLUTIONS) >= 20
    assert len({name.partition("/")[0] for name in SOLUTIONS}) == 6
