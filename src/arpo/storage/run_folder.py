"""The run folder: all files of a run, except its checkpoints.

    recipe.toml         all config keys
    changes.json        settings that were changed on resume, each with its first batch
    format.json         number of this format, version of arpo
    metrics.jsonl       deterministic metrics: a repeated run writes the same bytes
    evaluations.jsonl   every evaluation, with the score of each task
    timing.jsonl        times and rates
    groups.jsonl        the groups of each batch: episodes, rewards, advantages, and what replay replaced
    calls.jsonl         when each call of an episode, and each stage of a batch, began and how long it took
    token_stats.jsonl   with store.token_stats: entropy, ratio and clipping of each trained token
    failures.jsonl      failed episodes
    trajectories.jsonl  episodes, screenshots by sha256; one episode per task of an evaluation
    screenshots.pack    the screenshots
    summary.json        results, written at the end of the run
    gap.json            what `arpo doctor --gap RUN` found
    judgements.jsonl    votes of `arpo judge RUN`, which `rewind` leaves as they are

The .jsonl files and the pack are append-only. A checkpoint records their sizes (`offsets`), and a resumed run
truncates them to these sizes (`rewind`), so an interrupted run leaves the same files as an uninterrupted
one. One process writes at a time; others may read.

Large screenshots are encoded by other processes while the run goes on. A thread then writes the episodes, in
the order in which they were added: first the screenshots, then the line with their names. `offsets` waits
for this thread, so a checkpoint has everything before it.
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.config.changes import Change
from arpo.config.recipe import to_toml
from arpo.errors import UserError
from arpo.storage.codec import (
    StoredEpisode,
    check_evaluation,
    check_numbers,
    check_summary,
    failure_from_json,
    parse_changes,
    screenshot_names,
    screenshots_of,
    store_group,
    stored_episode,
    stored_group,
    trajectory_from_json,
    trajectory_to_json,
)
from arpo.storage.files import (
    RESTORE_OR_LEAVE,
    WRITTEN_BY,
    check_format,
    damage,
    lock_folder,
    naming,
    parse_json,
    parse_object,
    read_json,
    read_lines,
    write_all,
    write_atomically,
)
from arpo.storage.in_order import InOrder
from arpo.storage.screenshots import ScreenshotPack, needs_process
from arpo.types import Failure, Group, Screenshot, Trajectory

METRICS, EVALUATIONS, TIMING, GROUPS, FAILURES, TRAJECTORIES = (
    "metrics.jsonl",
    "evaluations.jsonl",
    "timing.jsonl",
    "groups.jsonl",
    "failures.jsonl",
    "trajectories.jsonl",
)
CALLS, TOKEN_STATS = "calls.jsonl", "token_stats.jsonl"
LOGS = (METRICS, EVALUATIONS, TIMING, GROUPS, CALLS, TOKEN_STATS, FAILURES, TRAJECTORIES)
PACK, RECIPE, FORMAT_FILE, SUMMARY = "screenshots.pack", "recipe.toml", "format.json", "summary.json"
CHANGES, GAP, JUDGEMENTS = "changes.json", "gap.json", "judgements.jsonl"
NO_SCREENSHOTS = "their screenshots are not in screenshots.pack (pruned, or the file was truncated)"
_CHECKS = {
    METRICS: check_numbers,
    TIMING: check_numbers,
    EVALUATIONS: check_evaluation,
    GROUPS: stored_group,
}
MAX_WAITING_BYTES = 4 << 30  # PNGs of episodes to write: 256 episodes of 16 screenshots of 1920x1080
_ID_PREFIX = b'{"episode_id":'


class RunFolderReader:
    """Reads a run folder, also during the run."""

    def __init__(self, folder: Path, *, writable: bool = False) -> None:
        if not (folder / TRAJECTORIES).is_file() or not (folder / PACK).is_file():
            raise UserError(
                f"{folder}: not a run folder: {TRAJECTORIES} or {PACK} is missing: restore it, or give the "
                "folder of a run"
            )
        self.folder = folder
        self._lines = _index(folder / TRAJECTORIES)  # before the pack: a run may be appending to both
        self._pack = ScreenshotPack(folder / PACK, writable=writable)

    def episode_ids(self) -> list[str]:
        self._finish_writing()
        return list(self._lines)

    @property
    def ends_within_an_episode(self) -> bool:
        """Whether the last line is incomplete: the run is still writing it, or the file was damaged."""
        with (self.folder / TRAJECTORIES).open("rb") as file:
            return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"

    def read_log(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the checked records of a .jsonl file, for example METRICS."""
        return read_log(self.folder, name)

    def read_summary(self) -> dict[str, Any]:
        """Return {} until the run has ended."""
        return read_summary(self.folder)

    def read_changes(self) -> tuple[Change, ...]:
        """The settings that were changed on resume."""
        path = self.folder / CHANGES
        found = read_json(path)
        with damage(path, RESTORE_OR_LEAVE):
            return parse_changes(found)

    def episodes(self) -> Iterator[StoredEpisode]:
        """Yield all stored episodes, without their turns. A run may append others meanwhile."""
        self._finish_writing()
        path = self.folder / TRAJECTORIES
        for number, record in enumerate(self.read_log(TRAJECTORIES), 1):
            with damage(f"{path}: line {number}"):
                episode = stored_episode(record)
            if episode.episode_id in self._lines:
                yield episode

    def failures(self) -> Iterator[Failure]:
        """Yield all failed episodes."""
        path = self.folder / FAILURES
        for number, record in enumerate(self.read_log(FAILURES), 1):
            with damage(f"{path}: line {number}"):
                failure = failure_from_json(record)
            yield failure

    def load_trajectory(self, episode_id: str) -> Trajectory:
        value = self._read(episode_id)
        with damage(self._location(episode_id)):
            return trajectory_from_json(value, self._pack.read)

    def load_outline(self, episode_id: str) -> Trajectory:
        """The episode with screenshots of a size and a name, without pixels.

        Checks everything that `load_trajectory` checks, except that the screenshots can be decoded.
        """
        value = self._read(episode_id)
        with damage(self._location(episode_id)):
            return trajectory_from_json(value, self._pack.outlines)

    def has_screenshots(self, episode: StoredEpisode) -> bool:
        """Whether all screenshots of an episode are still stored: pruning deletes them and keeps the text."""
        return all(name in self._pack for name in episode.screenshots)

    def close(self) -> None:
        self._pack.close()

    def close_after_last_use(self) -> None:
        """Close the files when nothing refers to this reader any more."""
        weakref.finalize(self, self._pack.close)

    def _finish_writing(self) -> None:
        """Wait until all added episodes are written: a reader has none."""

    def _read(self, episode_id: str) -> dict[str, Any]:
        if episode_id not in self._lines:
            self._finish_writing()
        return self._read_line(episode_id)

    def _read_line(self, episode_id: str) -> dict[str, Any]:
        if episode_id not in self._lines:
            raise UserError(
                f"{self.folder / TRAJECTORIES}: damaged, contains no episode {episode_id!r}: "
                f"{RESTORE_OR_LEAVE}"
            )
        with (self.folder / TRAJECTORIES).open("rb") as file:
            file.seek(self._lines[episode_id])
            return parse_object(file.readline(), self._location(episode_id))

    def _location(self, episode_id: str) -> str:
        return f"{self.folder / TRAJECTORIES}: episode {episode_id!r} at byte {self._lines[episode_id]}"


class RunFolder(RunFolderReader):
    """Writes a run folder. Creates it if needed, and locks it against other writers until `close`.

    Raises UserError for the folder of a version with another format.

    Opening changes no content: a file may be damaged, and its remains may be needed to restore it. The first
    line that is appended replaces an incomplete last line.
    """

    def __init__(self, folder: Path) -> None:
        with ExitStack() as opened:
            opened.callback(os.close, lock_folder(folder, "run", "--run.dir"))
            if (folder / RECIPE).exists():
                check_format(folder / FORMAT_FILE)
            for name in (*LOGS, PACK):
                (folder / name).touch()
                if not (folder / name).is_file():
                    raise UserError(f"{folder / name}: is not a file: move it to another folder")
            super().__init__(folder, writable=True)
            opened.callback(super().close)
            self._logs = {name: opened.enter_context(open_log(folder / name)) for name in LOGS}
            self._writing = InOrder(MAX_WAITING_BYTES)
            self._opened = opened.pop_all()

    def write_recipe(self, config: Config) -> None:
        write_atomically(self.folder / FORMAT_FILE, json.dumps(WRITTEN_BY) + "\n")
        write_atomically(self.folder / RECIPE, to_toml(config))

    def write_changes(self, changes: Sequence[Change]) -> None:
        """Replace the settings that were changed on resume. Call it before `write_recipe`."""
        if changes or (self.folder / CHANGES).exists():
            text = json.dumps({"changes": [asdict(change) for change in changes]}, indent=2)
            write_atomically(self.folder / CHANGES, text + "\n")

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

    def log_group(
        self, step: int, version: int, group: Group, rewards: Sequence[float], advantages: Sequence[float]
    ) -> None:
        """A group of batch `step`, after replay. `version`: of the weights that the batch trains."""
        self._append(GROUPS, asdict(store_group(step, version, group, rewards, advantages)))

    def log_calls(self, owner: Mapping[str, Any], calls: Sequence[tuple[str, float, float]]) -> None:
        """Times of calls: name, begin in seconds since the start of the run, and duration.

        `owner` is {"episode": id, …} or {"step": batch}.
        """
        timed = [[name, round(began, 4), round(seconds, 4)] for name, began, seconds in calls]
        self._append(CALLS, {**owner, "calls": timed})

    def log_token_stats(self, line: Mapping[str, Any]) -> None:
        self._append(TOKEN_STATS, line)

    def add_failure(self, failure: Failure) -> None:
        self._append(FAILURES, asdict(failure))

    def prepare(self, screenshot: Screenshot, previous: Screenshot | None) -> None:
        """Begin to encode a screenshot of an episode to be added later.

        `previous` is the one before it in the episode. A repeated screenshot counts once.
        """
        self._pack.prepare(screenshot, previous)

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Store an episode. With large screenshots it is written later, in the order of the calls.

        Waits if too many episodes are not written yet. Raises the error of an earlier episode.
        """
        shots = screenshots_of(trajectory)
        if self._writing.idle and not any(map(needs_process, shots)):
            self._write(trajectory, shots)
            return
        for previous, shot in zip((None, *shots), shots, strict=False):
            self._pack.prepare(shot, previous)
        self._writing.put(partial(self._write, trajectory, shots), sum(len(shot.png) for shot in shots))

    def _write(self, trajectory: Trajectory, shots: Sequence[Screenshot]) -> None:
        """Writes the screenshots first: every line of trajectories.jsonl must refer to stored ones."""
        assert trajectory.episode_id not in self._lines, f"{trajectory.episode_id} is stored already"
        for previous, shot in zip((None, *shots), shots, strict=False):
            self._pack.add(shot, previous)
        offset = self._logs[TRAJECTORIES].tell()
        self._append(TRAJECTORIES, trajectory_to_json(trajectory))
        self._lines[trajectory.episode_id] = offset

    def _finish_writing(self) -> None:
        self._writing.wait()

    def offsets(self) -> dict[str, int]:
        """Write all added episodes, flush all files to disk and return their sizes, for a checkpoint."""
        self._finish_writing()
        return self._flush(self._log_sizes())

    def begin_offsets(self) -> Callable[[], dict[str, int]]:
        """The same in a thread, in order with the episodes. The returned function waits for the sizes.

        They are those of this moment: what is added meanwhile is not included.
        """
        logs, sizes = self._log_sizes(), dict[str, int]()
        number = self._writing.put(lambda: sizes.update(self._flush(logs)), 0)

        def wait() -> dict[str, int]:
            self._writing.wait(number)
            return sizes

        return wait

    def _log_sizes(self) -> dict[str, int]:
        return {name: file.tell() for name, file in self._logs.items()}

    def _flush(self, logs: Mapping[str, int]) -> dict[str, int]:
        """Flush all files to disk. Returns their sizes: `logs`, and those of the episodes up to now."""
        sizes = {**logs, PACK: self._pack.size, TRAJECTORIES: self._logs[TRAJECTORIES].tell()}
        for name, file in self._logs.items():
            with naming(self.folder / name):
                os.fsync(file.fileno())
        self._pack.sync()
        return sizes

    def check_sizes(self, offsets: Mapping[str, int]) -> None:
        """Raise UserError if a file has other content than at the checkpoint with these `offsets`."""
        for name, file in self._logs.items():
            _check_end(self.folder / name, file, offsets.get(name, 0))
        self._pack.check_size(offsets.get(PACK, 0))

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Truncate every file to its size in `offsets`; {} empties all. Before that, checks the sizes."""
        self._finish_writing()
        self.check_sizes(offsets)
        self._pack.rewind(offsets.get(PACK, 0))
        for name, file in self._logs.items():
            file.seek(offsets.get(name, 0))
            file.truncate()
        self._lines = {name: at for name, at in self._lines.items() if at < offsets.get(TRAJECTORIES, 0)}

    def prune(self, keep_episodes: Collection[str]) -> None:
        """Delete the screenshots of all other episodes. `keep_episodes` are for example those in replay.

        Done in a thread, in order with the episodes. A later call of this object raises its error.
        """

        def prune() -> None:
            self._pack.prune({name for episode in keep_episodes for name in self._screenshots_of(episode)})

        self._writing.put(prune, 0)

    def _screenshots_of(self, episode_id: str) -> tuple[str, ...]:
        value = self._read_line(episode_id)
        with damage(self._location(episode_id)):
            return screenshot_names(value)

    def close(self) -> None:
        """Write all added episodes. Raises the error of one, unless it was raised before."""
        with self._opened:
            self._writing.close()

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":")) + "\n"
        file = self._logs[name]
        with naming(self.folder / name):
            file.truncate()
            write_all(file, line.encode())


def read_log(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the checked records of a .jsonl file of a run. Raises UserError at a damaged one."""
    for number, record in enumerate(read_lines(folder / name), 1):
        if name in _CHECKS:
            with damage(f"{folder / name}: line {number}"):
                _CHECKS[name](record)
        yield record


def read_summary(folder: Path) -> dict[str, Any]:
    """Return the checked summary of a run, {} until it has ended."""
    summary = read_json(folder / SUMMARY)
    with damage(folder / SUMMARY):
        check_summary(summary)
    return summary


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
    with damage(f"{path}: byte {offset}"):
        name = parse_json(head[len(_ID_PREFIX) :]) if found and head.startswith(_ID_PREFIX) else None
        if not isinstance(name, str):
            raise ValueError("no episode starts here")
    return name


def open_log(path: Path) -> FileIO:
    """Open a file at the end of its last complete line."""
    file = path.open("r+b", buffering=0)
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - (1 << 16))
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    file.seek(end)
    return file


def _check_end(path: Path, file: FileIO, offset: int) -> None:
    """Raise UserError if no complete line ends at `offset`, the size of the file in the checkpoint."""
    complete = file.tell()
    if offset > complete:
        raise UserError(
            f"{path}: has {complete} bytes of complete lines, but {offset} in the checkpoint: "
            f"{RESTORE_OR_LEAVE}"
        )
    if offset and os.pread(file.fileno(), 1, offset - 1) != b"\n":
        raise UserError(
            f"{path}: damaged, no line ends at byte {offset}, its size in the checkpoint: {RESTORE_OR_LEAVE}"
        )
