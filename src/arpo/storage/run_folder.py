"""One run's folder: everything that a run writes, save its checkpoints, and reads again.

    recipe.toml         the resolved recipe
    metrics.jsonl       numbers that a repeated run gives again, bit for bit
    evaluations.jsonl   every evaluation, each verdict by its task
    timing.jsonl        times and rates
    failures.jsonl      episodes that could not be carried out
    trajectories.jsonl  episodes, their screenshots by name; of an evaluation one for each task
    screenshots.pack    the screenshots
    summary.json        the end of the run

The files only grow. A checkpoint records how far they had grown (`offsets`), and a resumed run cuts them back
to there (`rewind`), so that a killed run and an undisturbed one leave the same files. One process writes.
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
    """Reads a run's folder, also while the run goes on."""

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
        if not (folder / TRAJECTORIES).is_file() or not (folder / PACK).is_file():
            raise UserError(f"{folder}: not a run folder: it has no {TRAJECTORIES} and {PACK}")
        self.folder = folder
        self._lines = _index(folder / TRAJECTORIES)  # before the pack, which may grow meanwhile
        self._pack = ScreenshotPack(folder / PACK, writable=writable)

    def episode_ids(self) -> list[str]:
        return list(self._lines)

    def read_log(self, name: str) -> Iterator[dict[str, Any]]:
        """The records of one of the .jsonl files."""
        return read_lines(self.folder / name)

    def read_summary(self) -> dict[str, Any]:
        """Empty until the run has ended."""
        return read_json(self.folder / SUMMARY)

    def load_trajectory(self, episode_id: str) -> Trajectory:
        value = self._read(episode_id)
        return trajectory_from_json(value, self._pack.read(screenshot_names(value)))

    def has_screenshots(self, record: Mapping[str, Any]) -> bool:
        """Whether an episode's record can be loaded whole: pruning frees screenshots and keeps the text."""
        return all(name in self._pack for name in screenshot_names(record))

    def close(self) -> None:
        self._pack.close()

    def _read(self, episode_id: str) -> dict[str, Any]:
        if episode_id not in self._lines:
            raise UserError(f"{self.folder / TRAJECTORIES}: no episode {episode_id!r} in it")
        with (self.folder / TRAJECTORIES).open("rb") as file:
            file.seek(self._lines[episode_id])
            return json.loads(file.readline())


class RunFolder(RunFolderReader):
    """Writes a run's folder, making it if need be."""

    def __init__(self, folder: Path) -> None:
        self._lock = lock(folder, "run", "--run.dir")
        for name in LOGS:
            _drop_torn_line(folder / name)
        (folder / PACK).touch()
        super().__init__(folder, writable=True)
        self._logs = {name: (folder / name).open("ab") for name in LOGS}

    def write_recipe(self, config: Config) -> None:
        write_atomically(self.folder / RECIPE, to_toml(config))

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.folder / SUMMARY, json.dumps(_finite(summary), indent=2) + "\n")

    def drop_summary(self) -> None:
        """A run that goes on after its end, with more epochs, has not ended."""
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
        """Screenshots first: a line in trajectories.jsonl never names one that is not there."""
        assert trajectory.episode_id not in self._lines, f"{trajectory.episode_id} is stored already"
        previous = None
        for shot in screenshots_of(trajectory):
            self._pack.add(shot, previous)
            previous = shot
        offset = self._logs[TRAJECTORIES].tell()
        self._append(TRAJECTORIES, trajectory_to_json(trajectory))
        self._lines[trajectory.episode_id] = offset

    def offsets(self) -> dict[str, int]:
        """How far each file has grown, once all of it is on the disk: for a checkpoint to keep."""
        for file in self._logs.values():
            os.fsync(file.fileno())
        self._pack.sync()
        return {PACK: self._pack.size, **{name: file.tell() for name, file in self._logs.items()}}

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Cut every file back to where it was; {}: to nothing."""
        for name, file in self._logs.items():
            offset = offsets.get(name, 0)
            if offset > file.tell():
                raise UserError(
                    f"{self.folder / name}: is {file.tell()} bytes, the checkpoint has seen {offset}: "
                    "bring the file back, or begin another run.dir"
                )
            file.truncate(offset)
            file.seek(offset)
        self._pack.rewind(offsets.get(PACK, 0))
        self._lines = {name: at for name, at in self._lines.items() if at < offsets.get(TRAJECTORIES, 0)}

    def prune(self, keep_episodes: Collection[str]) -> None:
        """Free the screenshots of all episodes but these, such as those that the replay buffer names."""
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
    """Of a .jsonl file that may not be there yet; a last line that is not whole yet is left out."""
    if path.is_file():
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield _record(line, f"{path}: line {number}")


def read_json(path: Path) -> dict[str, Any]:
    """Empty where there is no such file."""
    return _record(path.read_bytes(), str(path)) if path.is_file() else {}


def _record(text: bytes, place: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise UserError(f"{place}: damaged, not a JSON object: bring it back, or remove its run")
    return record


def write_atomically(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _finite(record: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no NaN: a number that is none becomes null."""
    clean: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            clean[name] = _finite(value)
        else:
            clean[name] = None if isinstance(value, float) and not math.isfinite(value) else value
    return clean


def _index(path: Path) -> dict[str, int]:
    """Where each episode's line begins."""
    lines: dict[str, int] = {}
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                lines[_episode_id(path, offset, line)] = offset
            offset += len(line)
    return lines


def _episode_id(path: Path, offset: int, line: bytes) -> str:
    """From the start of the line alone. A quote in the id is escaped, so the next key is not in it."""
    head, found, _ = line.partition(b',"task_id":')
    if not found or not head.startswith(_ID_PREFIX):
        raise UserError(f"{path}: is damaged: no episode begins at byte {offset}")
    return json.loads(head[len(_ID_PREFIX) :])


def _drop_torn_line(path: Path) -> None:
    """A process that was killed while it wrote leaves half a line."""
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


def lock(folder: Path, what: str, option: str) -> int:
    """Make the folder and keep other processes out of it, until this one ends, however it ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(
            f"{folder}: the {what}'s folder cannot be written: {error.strerror}: choose another {option}"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise UserError(
            f"{folder}: another process is writing this {what}; choose another {option}"
        ) from None
    return file
