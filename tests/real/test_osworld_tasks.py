"""OSWorld's own tasks on light desktops, through a host: 1 if solved, 0 if untouched.

The default is one or two tasks per application; FULL=1 runs all tasks with a solution.
"""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

import mail_profile
from arpo.envs.osworld.desktop_env_names import shipped_names, to_json
from arpo.envs.osworld.needs import needs
from arpo.envs.osworld.runnable import split_runnable
from arpo.errors import EnvError
from arpo.tasks.lists import load_tasks
from osworld_files import PYTHON, osworld_folder, osworld_task
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
        if file.path.endswith("thunderbird-profile.tar.gz"):
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


def test_names_read_from_source_are_those_of_the_imported_desktop_env(host_config):
    """A run skips tasks by these names. The shipped names are those of the installed version."""
    code = """if True:
        from arpo.envs.osworld.worker import add_placeholder
        add_placeholder("easyocr")
        from desktop_env.controllers.setup import SetupController
        from desktop_env.evaluators import getters, metrics
        from arpo.envs.osworld.desktop_env_names import installed_names, to_json
        from arpo.envs.osworld.desktop_env_names import KnownNames
        steps = [name for name in dir(SetupController) if name.startswith("_") and name.endswith("_setup")]
        public = [name for name in dir(metrics) if not name.startswith("_")]
        imported = KnownNames(
            steps=frozenset(name.removeprefix("_").removesuffix("_setup") for name in steps),
            getters=frozenset(name.removeprefix("get_") for name in dir(getters) if name.startswith("get_")),
            metrics=frozenset(name for name in public if callable(getattr(metrics, name))),
            unusable=installed_names().unusable,
        )
        assert imported == installed_names()
        print(to_json(imported))
    """
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True)
    names, shipped = json.loads(done.stdout), json.loads(to_json(shipped_names()))
    for kind in ("steps", "getters", "metrics"):
        assert names[kind] == shipped[kind]


@pytest.mark.full
def test_every_task_that_a_run_announces_starts(hosts, host_config):
    tasks = load_tasks(str(osworld_folder()))
    for task in tasks:
        add_profile(task, Path(host_config.osworld.cache))
    announced, _ = split_runnable(tasks, host_config)

    async def start_all():
        slots = asyncio.Semaphore(host_config.env.parallel)

        async def fault(task):
            async with slots, hosts.lease() as env:
                try:
                    await env.start(task)
                except EnvError as error:
                    return f"{task.id}: {error}"
                finally:
                    await env.close()

        return await asyncio.gather(*map(fault, announced))

    assert [fault for fault in asyncio.run(start_all()) if fault] == []
    assert len(announced) == 50
