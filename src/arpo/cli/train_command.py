"""`arpo train`: trains a model, and writes the report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from arpo.cli.command import Command, argument, recipe_argument
from arpo.config.recipe import describe, load_config
from arpo.interrupts import INTERRUPTED


def run_train(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    if options.help_keys is not None:
        print(describe(options.help_keys))
        return 0
    config = load_config(options.recipe, overrides)
    from arpo.training.trainer import not_watching, run_training

    code = run_training(config, watching=_live_view if sys.stdout.isatty() else not_watching)
    if code != INTERRUPTED:
        from arpo.viewer.export import write_report

        print(f"report: {write_report(Path(config.run.dir))}")
    return code


def _live_view(folder: Path, note: Callable[[str], None]) -> AbstractContextManager[object]:
    from arpo.viewer.live import live_view

    return live_view(folder, note)


COMMAND = Command(
    name="train",
    run=run_train,
    purpose="train a model with a recipe",
    lesson="""\
A recipe is a TOML file with config keys. `arpo recipes` lists the shipped ones.
Start your own recipe with the line `extends = "desk"`, then set the keys to change. Without this line, all
other keys have their defaults, not the values of desk. Paths in a recipe are relative to the recipe.

On a terminal, it shows the address of a live view of the run (`arpo view`) in the browser.
Output in run.dir: recipe.toml (all config keys), metrics.jsonl, trajectories.jsonl, checkpoints/, model/,
summary.json and report.html.
Exit code 1 if most episodes failed because of the environment; a line at the end names the reason.
Ctrl-C finishes the current batch and saves a checkpoint; an evaluation stops at once and keeps its finished
episodes. If a run is interrupted in any way, run the same command again: it resumes.
With train.method rft, sft, dpo or kto, training is offline: it uses stored episodes (offline.source).""",
    example="""\
arpo train
arpo train desk --replay.enabled false --run.seed 1 --run.dir runs/plain-grpo
arpo train paper/dpo --offline.source runs/collected --run.dir runs/dpo
arpo train my-recipe.toml --optim.lr 1e-4""",
    arguments=(
        recipe_argument("desk_fresh"),
        argument(
            "--help-keys",
            "list the config keys with defaults (of one section, such as engine) and exit",
            nargs="?",
            const="",
            metavar="SECTION",
        ),
    ),
    settings=True,
    resumable=True,
)
