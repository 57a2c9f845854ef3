"""The run folder: all files of a run, except its checkpoints.

    recipe.toml         all config keys
    metrics.jsonl       deterministic metrics: a repeated run writes the same bytes
    evaluations.jsonl   every evaluation, with the score of each task
    timing.jsonl        times and rates
    failures.jsonl      failed episodes
    trajectories.jsonl  episodes, screenshots by sha256; one episode per task of an evaluation
    screenshots.pack    the screenshots
    summary.json        results, written at the end of the run

The .jsonl files and the pack are append-only. A checkpoint records their sizes (`offsets`), and a resumed run
truncates them to these sizes (`rewind`), so an interrupted run leaves the same files as an uninterrupted
one. One process writes at a time; others may read.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.errors import UserError
from arpo.recipe import to_toml
from arpo.storage.codec import screenshot_names, screenshots_of, trajectory_from_json, trajectory_to_json
from arpo.storage.screenshots import ScreenshotPack
from arpo.types import Failure, Trajectory

METRICS, EVALUATIONS, TIMING, FAILURES, TRAJECTORIES = (
    "metrics.jsonl",
    "evaluations.jsonl",
    "timing.jsonl",
    "failures.jsonl",
    "trajectories.jsonl",
)
LOGS = (METRICS, EVALUATIONS, TIMING, FAILURES, TRAJECTORIES)
PACK, RECIPE, SUMMARY = "screenshots.pack", "recipe.toml", "summary.json"
_ID_PREFIX = b'{"episode_id":'


class RunFolderReader:
    """Reads a run folder, also during the run."""

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
        if not (folder / TRAJECTORIES).is_file() or not (folder / PACK).is_file():
            raise UserError(f"{folder}: not a run folder: {TRAJECTORIES} or {PACK} is missing")
        self.folder = folder
        self._lines = _index(folder / TRAJECTORIES)  # before the pack: a run may be appending to both
        self._pack = ScreenshotPack(folder / PACK, writable=writable)

    def episode_ids(self) -> list[str]:
        return list(self._lines)

    def read_log(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a .jsonl file, for example METRICS."""
        return read_lines(self.folder / name)

    def read_summary(self) -> dict[str, Any]:
        """Return {} until the run has ended."""
        return read_json(self.folder / SUMMARY)

    def load_trajectory(self, episode_id: str) -> Trajectory:
        value = self._read(episode_id)
        return trajectory_from_json(value, self._pack.read(screenshot_names(value)))

    def has_screenshots(self, record: Mapping[str, Any]) -> bool:
        """Whether all screenshots of an episode are still stored: pruning deletes them and keeps the text."""
        return all(name in self._pack for name in screenshot_names(record))

    def close(self) -> None:
        self._pack.close()

    def _read(self, episode_id: str) -> dict[str, Any]:
        if episode_id not in self._lines:
            raise UserError(f"{self.folder / TRAJECTORIES}: contains no episode {episode_id!r}")
        with (self.folder / TRAJECTORIES).open("rb") as file:
            file.seek(self._lines[episode_id])
            return json.loads(file.readline())


class RunFolder(RunFolderReader):
    """Writes a run folder. Creates it if needed, and locks it against other writers until `close`."""

    def __init__(self, folder: Path) -> None:
        self._lock = lock_folder(folder, "run", "--run.dir")
        for name in LOGS:
            _truncate_partial_line(folder / name)
        (folder / PACK).touch()
        super().__init__(folder, writable=True)
        self._logs = {name: (folder / name).open("ab") for name in LOGS}

    def write_recipe(self, config: Config) -> None:
        write_atomically(self.folder / RECIPE, to_toml(config))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.folder / SUMMARY, json.dumps(_finite(summary), indent=2) + "\n")

    def delete_summary(self) -> None:
        """For a completed run, resumed with more epochs."""
        (self.folder / SUMMARY).unlink(missing_ok=True)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._append(METRICS, _finite({"step": step, **metrics}))

    def log_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self._append(EVALUATIONS, evaluation)

    def log_timing(self, step: int, timing: Mapping[str, float]) -> None:
        self._append(TIMING, _finite({"step": step, **timing}))

    def add_failure(self, failure: Failure) -> None:
        self._append(FAILURES, asdict(failure))

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Writes the screenshots first: every line of trajectories.jsonl must refer to stored ones."""
        assert trajectory.episode_id not in self._lines, f"{trajectory.episode_id} is stored already"
        previous = None
        for shot in screenshots_of(trajectory):
            self._pack.add(shot, previous)
            previous = shot
        offset = self._logs[TRAJECTORIES].tell()
        self._append(TRAJECTORIES, trajectory_to_json(trajectory))
        self._lines[trajectory.episode_id] = offset

    def offsets(self) -> dict[str, int]:
        """Flush all files to disk and return their sizes in bytes, for a checkpoint."""
        for file in self._logs.values():
            os.fsync(file.fileno())
        self._pack.sync()
        return {PACK: self._pack.size, **{name: file.tell() for name, file in self._logs.items()}}

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Truncate every file to its size in `offsets`; {} empties all.

        Raises UserError if a file is shorter.
        """
        for name, file in self._logs.items():
            offset = offsets.get(name, 0)
            if offset > file.tell():
                raise UserError(
                    f"{self.folder / name}: has {file.tell()} bytes, but {offset} in the checkpoint: "
                    "restore the file, or start a run in another run.dir"
                )
            file.truncate(offset)
            file.seek(offset)
        self._pack.rewind(offsets.get(PACK, 0))
        self._lines = {name: at for name, at in self._lines.items() if at < offsets.get(TRAJECTORIES, 0)}

    def prune(self, keep_episodes: Collection[str]) -> None:
        """Delete the screenshots of all other episodes. `keep_episodes` are for example those in replay."""
        self._pack.prune(
            {name for episode in keep_episodes for name in screenshot_names(self._read(episode))}
        )

    def close(self) -> None:
        super().close()
        for file in self._logs.values():
            file.close()
        os.close(self._lock)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")) + "\n"
        self._logs[name].write(line.encode())
        self._logs[name].flush()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a .jsonl file. A missing file is empty; an incomplete last line is skipped."""
    if path.is_file():
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield _record(line, f"{path}: line {number}")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} if there is no file. Raises UserError if it is damaged."""
    return _record(path.read_bytes(), str(path)) if path.is_file() else {}


def _record(text: bytes, location: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise UserError(f"{location}: damaged, not a JSON object: restore the file, or remove the run")
    return record


def write_atomically(path: Path, text: str) -> None:
    """Write a file through a temporary one: after a kill it has the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _finite(record: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinities by None, because JSON has no such numbers."""
    clean: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            clean[name] = _finite(value)
        else:
            clean[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    return clean


def _index(path: Path) -> dict[str, int]:
    """Byte offset of each episode's line, by episode id."""
    lines: dict[str, int] = {}
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines[_episode_id(path, offset, line)] = offset
            offset += len(line)
    return lines


def _episode_id(path: Path, offset: int, line: bytes) -> str:
    """Parse the first key only. Quotes in an id are escaped, so an id cannot contain the next key."""
    head, found, _ = line.partition(b',"task_id":')
    if not found or not head.startswith(_ID_PREFIX):
        raise UserError(
            f"{path}: damaged: no episode starts at byte {offset}: restore the file, or remove the run"
        )
    return json.loads(head[len(_ID_PREFIX) :])


def _truncate_partial_line(path: Path) -> None:
    """Remove an incomplete last line, left by a kill."""
    path.touch()
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        while size > 0:
            start = max(0, size - (1 << 16))
            file.seek(start)
            newline = file.read(size - start).rfind(b"\n")
            if newline >= 0:
                size = start + newline + 1
                break
            size = start
        file.truncate(size)


def lock_folder(folder: Path, kind: str, option: str) -> int:
    """Create the folder and lock it until this process ends; returns a file descriptor to unlock it earlier.

    Raises UserError if the folder is not writable or another process has the lock. `kind` ("run") and
    `option` ("--run.dir") appear in the message.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            f"{folder}: the folder of the {kind} cannot be written: {error.strerror}: choose another {option}"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise UserError(
            f"{folder}: another process is writing this {kind}: choose another {option}"
        ) from None
    return file
