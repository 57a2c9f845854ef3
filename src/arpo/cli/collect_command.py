"""`arpo collect`: records episodes for offline training."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from arpo.cli.command import Command, recipe_argument
from arpo.config.recipe import load_config


def run_collect(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = load_config(options.recipe, overrides)
    from arpo.training.collect import run_collection

    return run_collection(config)


COMMAND = Command(
    name="collect",
    run=run_collect,
    purpose="record episodes of the training tasks, for offline training",
    lesson="""\
Plays the same number of episodes as `arpo train` with the same recipe, without training the model:
train.epochs x training tasks (or train.tasks) x rollout.group_size. Output in run.dir.
If it is interrupted, run the same command again: it plays the missing episodes. A larger train.epochs or
train.tasks adds episodes.
A teacher may play instead of the model, for train.method sft or replay.seeds: a stronger model
(--engine.name openai), you (--engine.name person) or a script (--agent).""",
    example="""\
arpo collect paper --run.dir runs/collected
arpo train paper/rft --offline.source runs/collected --run.dir runs/rft
arpo collect desk --tasks.ids pool-018,pool-019 --train.epochs 1 --engine.name person --run.dir runs/mine""",
    arguments=(recipe_argument("desk_fresh"),),
    settings=True,
    resumable=True,
)
