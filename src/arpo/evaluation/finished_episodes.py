"""Finished episodes of an evaluation in progress: an interrupted evaluation plays only the missing ones.

The episodes are in a folder of their own, with a key of everything that determines them. The folder is
deleted when the result of the evaluation is stored. Failed episodes are not kept: they are played again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.config.recipe import keys, value
from arpo.engines.factory import model_id
from arpo.envs.factory import env_source
from arpo.errors import UserError
from arpo.storage.files import lock_folder, read_json, write_atomically
from arpo.storage.published_weights import PROBE_FILE
from arpo.storage.run_folder import RunFolder
from arpo.types import Screenshot, Task, Trajectory

KEY = "evaluation.json"
# Prefixes of the keys of an episode, for given weights and task.
_EPISODE_KEYS = (
    "run.seed",
    "model.dtype",
    "model.float32_head",
    "model.prompt",
    "model.min_pixels",
    "model.max_pixels",
    "model.dialect",
    "env.name",
    "env.width",
    "env.height",
    "env.partial",
    "osworld.provider",
    "osworld.network",
    "rollout.max_",
    "eval.temperature",
    "server.top_p",
    "server.frequency_penalty",
)


def evaluation_key(config: Config, sets: Mapping[str, Sequence[Task]], model: Any) -> str:
    """A hash of everything that determines the episodes of an evaluation.

    These are the weights, the tasks, the settings, and the code of the user's environment. `model` is the
    module that plays, the folder of published weights, or None if a server has the model.
    """
    if model is None:
        weights = model_id(config)
    elif isinstance(model, Path):  # the probe depends on all weights
        weights = hashlib.sha256((model / PROBE_FILE).read_bytes()).hexdigest()
    else:
        from arpo.models.trainable import fingerprint

        weights = fingerprint(model)
    settings = {key.name: value(config, key.name) for key in keys() if key.name.startswith(_EPISODE_KEYS)}
    tasks = {
        name: [{one.name: getattr(task, one.name) for one in fields(task)} for task in tasks]
        for name, tasks in sets.items()
    }
    code = env_source(config.env.name)
    content = json.dumps([weights, settings, tasks, code], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


class FinishedEpisodes:
    """The finished episodes of one evaluation, by episode id. `add` stores another one."""

    def __init__(self, folder: Path, key: str, option: str) -> None:
        """Open or create the folder. Episodes with another key, and damaged ones, are deleted."""
        self._folder = folder
        os.close(lock_folder(folder, "evaluation", option))
        try:
            usable = _read_key(folder) == key
            self._store, self.episodes = self._open() if usable else self._start(key)
        except UserError:  # damaged: the episodes can be played again
            self._store, self.episodes = self._start(key)

    def prepare(self, screenshot: Screenshot, previous: Screenshot | None) -> None:
        """Begin to store a screenshot of an unfinished episode."""
        self._store.prepare(screenshot, previous)

    def add(self, trajectory: Trajectory) -> None:
        self._store.add_trajectory(trajectory)

    def close(self) -> None:
        self._store.close()

    def _open(self) -> tuple[RunFolder, dict[str, Trajectory]]:
        store = RunFolder(self._folder)
        try:
            return store, {name: store.load_trajectory(name) for name in store.episode_ids()}
        except UserError:
            store.close()
            raise

    def _start(self, key: str) -> tuple[RunFolder, dict[str, Trajectory]]:
        shutil.rmtree(self._folder)
        self._folder.mkdir()
        write_atomically(self._folder / KEY, json.dumps({"key": key}) + "\n")
        return RunFolder(self._folder), {}


def is_of_another_evaluation(folder: Path, key: str) -> bool:
    return (folder / KEY).is_file() and _read_key(folder) != key


def _read_key(folder: Path) -> str:
    return str(read_json(folder / KEY).get("key", ""))
