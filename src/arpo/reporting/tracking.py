"""Where metrics go: the run's own metrics.jsonl always, TensorBoard and Weights & Biases by option.

A tracker takes numbers and gives none back; training never depends on one. Processes that should not report
hold a NullTracker.
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
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class NullTracker:
    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


class JsonlTracker:
    """metrics.jsonl. The store is its owner's to close."""

    def __init__(self, store: RunFolder) -> None:
        self._store = store

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._store.log_metrics(step, metrics)

    def close(self) -> None:
        pass


class TensorBoardTracker:
    """`next_step`: what an earlier life of the run logged from there on is hidden."""

    def __init__(self, folder: Path, next_step: int) -> None:
        from tensorboardX import SummaryWriter  # slow to import, and not needed where it is off

        self._writer = SummaryWriter(str(folder), purge_step=next_step, write_to_disk=True)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """The W&B run's id is kept in the run folder, so that a resumed run goes on in the same one."""

    def __init__(self, folder: Path, config: Config) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError(
                "store.wandb_project is set, but wandb is not installed: pip install 'arpo[wandb]', "
                "or --store.wandb_project ''"
            ) from None
        known = folder / WANDB_ID
        run_id = known.read_text("utf-8").strip() if known.is_file() else uuid4().hex[:8]
        write_atomically(known, run_id + "\n")
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


class FanOut:
    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            tracker.log(step, metrics)

    def close(self) -> None:
        for tracker in self._trackers:
            tracker.close()


def open_tracker(config: Config, store: RunFolder, next_step: int) -> Tracker:
    """The trackers that a recipe asks for. `next_step` is the first that this life of the run will log."""
    trackers: list[Tracker] = [JsonlTracker(store)]
    if config.store.tensorboard:
        trackers.append(TensorBoardTracker(store.folder / "tensorboard", next_step))
    if config.store.wandb_project:
        trackers.append(WandbTracker(store.folder, config))
    return FanOut(trackers)
