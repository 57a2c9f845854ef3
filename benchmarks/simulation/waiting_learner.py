"""A learner that only waits. Each batch makes a new version without weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from arpo.engines.base import Weights
from arpo.learner.base import Batch, Metrics

VERSION = "version.txt"


async def work_in_loop(run: object, work: Callable[[], Any]) -> Any:
    """Replaces `Run.work`: simulated parts return coroutines, which wait in the event loop."""
    result = work()
    return await result if inspect.isawaitable(result) else result


class WaitingLearner:
    """Subclasses wait in `work`."""

    def __init__(self) -> None:
        self._version = 0

    async def work(self, batch: Batch) -> None:
        raise NotImplementedError

    async def train(self, batch: Batch) -> Metrics:
        await self.work(batch)
        self._version += 1
        return {"skipped": 0.0, "updates": float(len(batch.updates)), "engine_tokens": 1.0}

    def weights(self) -> Weights:
        return Weights(version=self._version, handle=None)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / VERSION).write_text(str(self._version), encoding="utf-8")

    def publish(self, folder: Path) -> None: ...

    def load(self, folder: Path) -> None:
        self._version = int((folder / VERSION).read_text(encoding="utf-8"))

    def close(self) -> None: ...
