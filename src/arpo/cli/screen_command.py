"""`arpo screen`: selects the tasks that a model can sometimes solve."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from arpo.cli.command import Command, argument, count, recipe_argument
from arpo.config.recipe import load_config


def run_screen(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.evaluation.screening import run_screening

    tasks = options.tasks or config.tasks.train
    kept = {"drop_always": options.drop_always, "count": options.count}
    return run_screening(config, tasks, options.rollouts, options.out, **kept)


COMMAND = Command(
    name="screen",
    run=run_screen,
    purpose="select the tasks that a model can sometimes solve",
    lesson="""\
Plays several episodes of each task (--rollouts). Writes a task file with the tasks that succeeded at least
once and their counts; --drop-always removes tasks that always succeed. --count instead keeps this many tasks
of medium difficulty: those nearest to 50% success, and of two at the same distance the harder one.
OUT.report.json contains the settings, a histogram of successes, and for each task its count and the reason
if it was dropped: never solved, always solved, failed, or cannot run on this machine.
If it is interrupted, run the same command again: it plays only the missing episodes.
To select again from a finished screening, run the same command with another --count or
with --drop-always: it reads OUT.report.json and plays nothing.""",
    example="""\
arpo screen --tasks desk:pool --out kept.json
arpo screen --tasks desk:pool --out kept.json --count 32
arpo train desk --tasks.train kept.json --run.dir runs/kept""",
    arguments=(
        recipe_argument(),
        argument("--tasks", "tasks to screen (default: tasks.train)", metavar="SOURCE"),
        argument(
            "--rollouts", "episodes per task (default: %(default)s)", type=count, default=16, metavar="N"
        ),
        argument("--drop-always", "remove tasks that succeed in every episode", action="store_true"),
        argument("--count", "keep the N tasks nearest to 50%% success", type=count, default=0, metavar="N"),
        argument("--out", "output file (task list)", type=Path, required=True, metavar="FILE"),
    ),
    settings=True,
    resumable=True,
)
