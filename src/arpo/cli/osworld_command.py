"""`arpo osworld`: installs desktops, lists the needs of tasks, and downloads their files."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from arpo.cli.command import Command, argument, count, recipe_argument
from arpo.config.recipe import load_config


def run_osworld(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.cli.osworld_tasks import run_install, run_osworld_action

    if options.action == "install":
        return run_install(config.osworld, options.python)
    return run_osworld_action(options.action, config, options.tasks, options.jobs, as_json=options.json)


COMMAND = Command(
    name="osworld",
    run=run_osworld,
    purpose="install real desktops; list OSWorld tasks with their needs; download their files",
    lesson="""\
install: installs Debian packages (with root or sudo), and desktop-env in the virtual environment of
osworld.python. `make osworld` does the same.
list: prints for each task if it can run here, and its needs: applications, files, network, account. Then the
number of tasks that can run, and the reasons and remedies for the others. Works without desktop-env.
fetch-cache: downloads input files and expected results of the tasks to osworld.cache. Runs read them from
there, and skip tasks with missing files. Existing files are kept. If it is interrupted or a download fails,
run the same command again. Exit code 1 if a download failed.""",
    example="""\
arpo osworld install
arpo osworld list --tasks evaluation_examples/test_all.json --osworld.network on
arpo osworld fetch-cache --tasks evaluation_examples --tasks.domains libreoffice_calc,gimp --jobs 16""",
    arguments=(
        argument(
            "action",
            "install, list or fetch-cache",
            choices=("install", "list", "fetch-cache"),
            metavar="ACTION",
        ),
        recipe_argument("osworld_local"),
        argument("--tasks", "tasks (default: tasks.train)", metavar="SOURCE"),
        argument("--jobs", "parallel downloads (default: 8)", type=count, metavar="N"),
        argument("--json", "list: print JSON", action="store_true"),
        argument("--python", "install: Python 3.11 or later (default: this one)", metavar="PROGRAM"),
    ),
    settings=True,
)
