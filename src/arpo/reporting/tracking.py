"""Metric trackers: always metrics.jsonl in the run folder; optionally TensorBoard and Weights & Biases.

Training never reads from a tracker. Processes without reports use NullTracker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from arpo.config import Config
from arpo.errors import UserError
from arpo.storage.files import naming, write_atomically
from arpo.storage.run_folder import RunFolder

WANDB_ID = "wandb-id.txt"


class Tracker(Protocol):
    """Receives the metrics of each step: `tracker.log(3, {"reward": 0.25, "loss": -0.01})`."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class NullTracker:
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class JsonlTracker:
    """Writes metrics.jsonl. Does not close the run folder."""

    def __init__(self, run_folder: RunFolder) -> None:
        self._run_folder = run_folder

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run_folder.log_metrics(step, metrics)

    def close(self) -> None:
        pass


class TensorBoardTracker:
    """Writes TensorBoard files. Hides entries from `next_step` on, logged before a resume.

    It writes in the caller's thread: a full disk raises OSError here. It would end the thread of
    SummaryWriter, and the next entries would wait for ever.
    """

    def __init__(self, folder: Path, next_step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # slow to import
        from tensorboardX.proto.event_pb2 import SessionLog

        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with naming(folder):
            self._writer = EventsWriter(str(folder / "events"))
        self._write(next_step, session_log=SessionLog(status=SessionLog.START))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in finite.items()]
        self._write(step, summary=Summary(value=values))

    def close(self) -> None:
        with naming(self._folder):
            self._writer.close()

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        with naming(self._folder):
            self._writer.write_event(Event(wall_time=time.time(), step=step, **content))
            self._writer.flush()


class WandbTracker:
    """Logs to W&B. The run folder stores the id of the W&B run, and a resumed run continues it."""

    def __init__(self, folder: Path, config: Config) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError(
                "store.wandb_project is set, but wandb is not installed: run pip install 'arpo[wandb]', "
                "or set --store.wandb_project ''"
            ) from None
        id_file = folder / WANDB_ID
        run_id = id_file.read_text("utf-8").strip() if id_file.is_file() else uuid4().hex[:8]
        write_atomically(id_file, run_id + "\n")
        self._run = wandb.init(
            project=config.store.wandb_project,
            id=run_id,
            resume="allow",
            dir=str(folder),
            config=asdict(config),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class MultiTracker:
    """Forwards to several trackers."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(step, metrics)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def open_tracker(config: Config, run_folder: RunFolder, next_step: int) -> Tracker:
    """Open the trackers in `config.store`. `next_step` is the first step to log."""
    trackers: list[Tracker] = [JsonlTracker(run_folder)]
    if config.store.tensorboard:
        trackers.append(TensorBoardTracker(run_folder.folder / "tensorboard", next_step))
    if config.store.wandb_project:
        trackers.append(WandbTracker(run_folder.folder, config))
    return MultiTracker(trackers)
