"""Metric trackers: always metrics.jsonl in the run folder; optionally TensorBoard and Weights & Biases.

Training never reads from a tracker. Processes without reports use NullTracker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from arpo.config import Config
from arpo.errors import UserError
from arpo.storage.run_folder import RunFolder, write_atomically

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
    """Writes TensorBoard files. Hides entries from `next_step` on, logged before a resume."""

    def __init__(self, folder: Path, next_step: int) -> None:
        from tensorboardX import SummaryWriter  # slow to import

        self._writer = SummaryWriter(str(folder), purge_step=next_step, write_to_disk=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


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
