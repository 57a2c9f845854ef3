"""A folder with one played episode in the form of a run folder, so that `arpo view` opens it.

While the episode is played, the folder has the steps so far and no summary. Each step replaces
trajectories.jsonl as a whole: a reader never finds a part of an episode.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from pathlib import Path

from arpo.config import Config
from arpo.config.recipe import to_toml
from arpo.errors import UserError
from arpo.storage.codec import PLAYED, screenshots_of, trajectory_to_json
from arpo.storage.files import WRITTEN_BY, lock_folder, write_atomically
from arpo.storage.run_folder import FORMAT_FILE, PACK, RECIPE, SUMMARY, TRAJECTORIES
from arpo.storage.screenshots import ScreenshotPack
from arpo.types import Trajectory

_PLAYED_PREFIX = f'{{"episode_id":"{PLAYED}"'.encode()


class PlayedFolder:
    """Writes the folder, and locks it until `close`. An earlier played episode in it is replaced.

    Raises UserError for a folder that contains a run.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        self.folder = folder
        if _contains_run(folder):
            raise UserError(f"{folder}: contains a run: choose another folder for the episode")
        with ExitStack() as opened:
            opened.callback(os.close, lock_folder(folder, "episode", "folder"))
            (folder / SUMMARY).unlink(missing_ok=True)
            self._pack = ScreenshotPack(folder / PACK, writable=True)
            opened.callback(self._pack.close)
            self._pack.rewind(0)
            write_atomically(folder / FORMAT_FILE, json.dumps(WRITTEN_BY) + "\n")
            write_atomically(folder / RECIPE, to_toml(config))
            self._opened = opened.pop_all()

    def write(self, trajectory: Trajectory) -> None:
        """Replace the stored episode by the same one with more steps."""
        shots = screenshots_of(trajectory)
        for previous, shot in zip((None, *shots), shots, strict=False):
            self._pack.add(shot, previous)
        line = json.dumps(trajectory_to_json(trajectory), separators=(",", ":"))
        write_atomically(self.folder / TRAJECTORIES, line + "\n")

    def finish(self, trajectory: Trajectory) -> None:
        """Write the complete episode."""
        self.write(trajectory)
        write_atomically(self.folder / SUMMARY, json.dumps({"episodes": 1}) + "\n")

    def close(self) -> None:
        self._opened.close()


def _contains_run(folder: Path) -> bool:
    try:
        with (folder / TRAJECTORIES).open("rb") as file:
            return file.read(len(_PLAYED_PREFIX)) != _PLAYED_PREFIX
    except FileNotFoundError:
        return (folder / RECIPE).exists() and not (folder / PACK).exists()
