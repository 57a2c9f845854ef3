"""`arpo eval`: its help and the command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from arpo.cli.command import RECIPE_HELP, Command, argument, recipe_argument
from arpo.config.recipe import load_config, shipped_recipes


def run_eval(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    if Path(options.recipe).is_dir() and options.recipe not in shipped_recipes():
        from arpo.api import open_run

        config = open_run(options.recipe).measured_config(overrides)
    else:
        config = load_config(options.recipe, overrides)
    from arpo.evaluation.evaluate import run_evaluation

    return run_evaluation(config, options.out)


COMMAND = Command(
    name="eval",
    run=run_eval,
    purpose="measure the success rate of a model on training and held-out tasks",
    lesson="""\
Episodes per task: eval.rollouts for tasks.train (0: none), eval.heldout_rollouts for tasks.heldout,
one for tasks.overall; sampling at eval.temperature. New tasks of desk:fresh are not played.
Prints the success rate of each task set; --out also writes rates and scores by task as JSON.
RECIPE may be the folder of a finished run: its recipe, with its trained model.
Desk has four held-out sets: new instances, new goal families, new applications, longer tasks. Each has a half
to choose settings with (desk:validation) and a half for the final measurement (desk:test).
If it is interrupted, run the same command again: with --out it plays only the missing episodes.""",
    example="""\
arpo eval --tasks.heldout desk:quick
arpo eval --out base.json
arpo eval --model.path exported --eval.rollouts 16 --out after.json
arpo eval runs/mine --tasks.heldout desk:test --eval.rollouts 0 --out test.json""",
    arguments=(
        recipe_argument(help=f"{RECIPE_HELP}, or run folder (default: %(default)s)"),
        argument(
            "--out",
            "output file (JSON); without it, an interrupted evaluation starts again",
            type=Path,
            metavar="FILE",
        ),
    ),
    settings=True,
    resumable=True,
)
