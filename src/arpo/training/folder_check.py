"""Checks of an existing run folder: it must hold a run of the same recipe, or be new."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from arpo.config import INCIDENTAL, Config
from arpo.config.recipe import changed, load_config
from arpo.errors import UserError
from arpo.storage import checkpoint
from arpo.storage.codec import COLLECTED
from arpo.storage.run_folder import RECIPE, RunFolder

LENGTH = ("train.epochs", "train.tasks", "offline.passes")  # whole keys, not prefixes: train.tasks_per_batch


def collected_episodes(store: RunFolder) -> list[str]:
    """Ids of the episodes of `arpo collect`."""
    return [name for name in store.episode_ids() if name.startswith(f"{COLLECTED}-")]


def check_folder(store: RunFolder, config: Config) -> None:
    """Refuse a folder with something other than a training run of this recipe."""
    if collected_episodes(store):
        raise UserError(
            f"{store.folder}: holds collected episodes. Choose another --run.dir. To train on the "
            "episodes, name the folder as --offline.source"
        )
    if (store.folder / checkpoint.CHECKPOINTS).is_dir():
        check_recipe(store, config, partial(_may_change, config))


def check_recipe(store: RunFolder, config: Config, may_change: Callable[[str], bool]) -> None:
    """Refuse a folder whose recipe differs from this one in a setting that may not change."""
    path = store.folder / RECIPE
    if path.is_file():
        others = [key for key in changed(load_config(path), config) if not may_change(key)]
        if others:
            raise UserError(
                f"{path}: the run in this folder has a different {', '.join(others)}. Choose another "
                "--run.dir, or remove the folder to start again"
            )


def _may_change(config: Config, key: str) -> bool:
    """True if a resumed run may have another value.

    The length of training must stay if past batches depend on it: easy_first orders tasks by epochs, and a
    learning rate that decays reaches 0 at the end.
    """
    length_matters = config.train.curriculum == "easy_first" or config.optim.schedule != "constant"
    return not length_matters if key in LENGTH else key.startswith(INCIDENTAL)
