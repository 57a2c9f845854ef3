"""A sharded learner that survives lost ranks: it restarts from the last checkpoint by itself.

    learner = RestartingLearner(ShardedLearner(model, renderer, config, recovery.launcher), recovery)
    metrics = learner.train(batch)  # a rank dies: all ranks start again, then the batch is trained

After a restart the learner loads the checkpoint and repeats the batches since then, in their order. It keeps
them in memory until a checkpoint contains them. Then it repeats the interrupted call. So every batch is in
the weights exactly once, whenever a rank is lost, and no episode is played again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from arpo.engines.base import Weights
from arpo.learner.base import Batch, Metrics, TokenStats
from arpo.learner.rank_processes import RankLauncher
from arpo.learner.ranks import RankLost
from arpo.learner.saved_state import saved_version
from arpo.learner.sharded import ShardedLearner
from arpo.types import Sample

MAX_ATTEMPTS = 4  # of one call
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The parts of a run that a restart needs.

    `newest_checkpoint` is a complete folder of `save`, None if there is none. `report` receives the reason of
    each restart before it begins, perhaps in another thread.
    """

    launcher: RankLauncher
    newest_checkpoint: Callable[[], Path | None]
    report: Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    version: int  # before the batch
    batch: Batch


class RestartingLearner:
    """A `Learner`. If a call loses a rank `MAX_ATTEMPTS` times, it raises `RankLost`."""

    def __init__(self, learner: ShardedLearner, recovery: Recovery) -> None:
        self._learner, self._recovery = learner, recovery
        self._trained: list[_Trained] = []  # since the checkpoint

    def train(self, batch: Batch) -> Metrics:
        if (folder := self._recovery.newest_checkpoint()) is not None:
            saved = saved_version(folder)
            self._trained = [one for one in self._trained if one.version >= saved]
        version = self.weights().version
        metrics = self._call(lambda: self._learner.train(batch))
        self._trained.append(_Trained(version=version, batch=batch))
        return metrics

    def token_stats(self) -> Sequence[Sequence[TokenStats]]:
        return self._learner.token_stats()

    def logprobs(
        self, samples: Sequence[Sample], *, base: bool, temperature: float | None = None
    ) -> list[tuple[float, ...]]:
        return self._call(lambda: self._learner.logprobs(samples, base=base, temperature=temperature))

    def weights(self) -> Weights:
        return self._learner.weights()

    def save(self, folder: Path) -> None:
        self._call(lambda: _into_empty(folder, self._learner.save))

    def publish(self, folder: Path) -> None:
        self._call(lambda: _into_empty(folder, self._learner.publish))

    def load(self, folder: Path) -> None:
        self._trained.clear()
        self._call(lambda: self._learner.load(folder))

    def close(self) -> None:
        self._learner.close()
        self._recovery.launcher.close()

    def _call(self, work: Callable[[], _T]) -> _T:
        """Do the work. Restart and repeat it if a rank is lost."""
        for attempt in range(MAX_ATTEMPTS):
            try:
                if attempt:
                    self._restart()
                return work()
            except RankLost as error:
                if attempt == MAX_ATTEMPTS - 1:
                    raise
                self._recovery.report(error.reason)
        raise AssertionError("the last attempt returns or raises")

    def _restart(self) -> None:
        self._learner.restart()
        if (folder := self._recovery.newest_checkpoint()) is not None:
            self._learner.load(folder)
        for one in self._trained:
            if one.version >= self._learner.weights().version:
                self._learner.train(one.batch)


def _into_empty(folder: Path, write: Callable[[Path], None]) -> None:
    """Write into the folder. Files of an interrupted attempt are removed first."""
    if folder.is_dir():
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    write(folder)
