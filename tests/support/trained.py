"""Complete training runs and their records, for the tests of both trainers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from arpo.config import Config
from arpo.reporting.display import Display
from arpo.storage.run_folder import RunFolder
from arpo.training.offline import OfflineTrainer
from arpo.training.trainer import Trainer

AnyRun = TypeVar("AnyRun", Trainer, OfflineTrainer)


def train_to_end(kind: Callable[[Config, RunFolder, Display], AnyRun], config: Config) -> AnyRun:
    """Start or resume a run and train until it is complete."""
    store = RunFolder(Path(config.run.dir))
    try:
        run = kind(config, store, Display())
        assert asyncio.run(run.train())
        return run
    finally:
        store.close()


def group_numbers(records: Iterable[Mapping[str, Any]]) -> list[int]:
    """Numbers of the trained groups in groups.jsonl of asynchronous training."""
    return [int(record["group"].split("-")[1]) for record in records]


def lines(config: Config, name: str) -> list[dict[str, Any]]:
    """Records of a .jsonl file of the run."""
    return [json.loads(line) for line in (Path(config.run.dir) / name).read_text("utf-8").splitlines()]
