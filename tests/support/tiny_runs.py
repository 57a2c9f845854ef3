"""Settings with which the documented and the printed commands take seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arpo.cli.entry_point import parse_command
from arpo.config.recipe import load_config

TINY = {
    "run.threads": "1",
    "tasks.train": "train.json",
    "tasks.heldout": "heldout.json",
    "tasks.overall": "",
    "env.parallel": "4",
    "rollout.group_size": "2",
    "rollout.max_steps": "1",
    "train.epochs": "1",
    "train.tasks": "0",
    "train.tasks_per_batch": "2",
    "train.tasks_per_update": "2",
    "offline.passes": "1",
    "eval.rollouts": "1",
    "eval.heldout_rollouts": "1",
    "eval.every": "0",
    "store.tensorboard": "false",
}
SETTINGS_OF_FRESH = {"tasks.train": "desk:fresh", "tasks.distinct": "2", "rollout.max_steps": "8"}
# Recipes of real desktops and large models, on Desk with the tiny model.
SETTINGS_OF_OSWORLD = {
    "env.name": "desk",
    "model.path": "base",
    "model.dtype": "float32",
    "model.device": "cpu",
    "model.prompt": "desk",
    "model.max_pixels": "37632",
    "engine.name": "in_process",
    "engine.replicas": "0",
    "optim.ranks": "1",
}
PLAYING = ("train", "collect", "eval", "screen", "play")


def tiny_settings(words: Sequence[str]) -> list[str]:
    """TINY without the keys that the command sets itself, or that its tasks need."""
    if words[0] not in PLAYING and "--seeds" not in words:
        return []
    _, options, given = parse_command(words)
    name = getattr(options, "recipe", None)
    recipe = load_config(None if name and Path(name).is_dir() else name)  # a run has a recipe of its own
    changes = dict(TINY)
    if recipe.tasks.train == "desk:fresh":
        changes |= SETTINGS_OF_FRESH
    if recipe.env.name == "osworld":
        changes |= SETTINGS_OF_OSWORLD
    left_out = {word.partition("=")[0].removeprefix("--") for word in given}
    if recipe.env.name not in ("desk", "osworld") or "tasks.ids" in left_out:
        left_out |= {"tasks.train", "tasks.heldout"}
    screening = ["--rollouts", "1"] if words[0] == "screen" else []
    return screening + [f"--{key}={value}" for key, value in changes.items() if key not in left_out]
