"""A learner that lost ranks has the weights of one that lost none: every batch is in them exactly once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

from arpo.config import Config
from arpo.learner.background import in_background
from arpo.learner.rank_processes import LocalRanks, Rank
from arpo.learner.ranks import RankLost
from arpo.learner.restarting import MAX_ATTEMPTS, Recovery, RestartingLearner
from arpo.learner.sharded import ShardedLearner
from arpo.models.loading import load_model
from arpo.models.trainable import set_trainable
from processes import descendants
from rank_learners import alone, batches, config, on_ranks, renderer_of, tensors, train
from tiny_vlm import save_folder, tiny_model

pytestmark = pytest.mark.slow


class KillableRanks(LocalRanks):
    """Counts starts, and kills running ranks."""

    def __init__(self) -> None:
        self.starts = 0
        self.closed = False
        self._before = descendants(os.getpid())

    def start(self, numbers: Iterable[int], store: str) -> list[Rank]:
        self.starts += 1
        return super().start(numbers, store)

    def close(self) -> None:
        self.closed = True

    def kill(self) -> None:
        for process in descendants(os.getpid()) - self._before:
            os.kill(process, signal.SIGKILL)


class DyingRanks(KillableRanks):
    """After the first start, ranks die at once."""

    def start(self, numbers: Iterable[int], store: str) -> list[Rank]:
        started = super().start(numbers, store)
        if self.starts > 1:
            self.kill()
        return started


def restarting(config: Config, recovery: Recovery) -> RestartingLearner:
    model = load_model(config.model, config.run.seed)
    set_trainable(model, config.model, config.run.seed)
    learner = ShardedLearner(model, renderer_of(config), config, recovery.launcher)
    return RestartingLearner(learner, recovery)


def test_every_batch_is_in_the_weights_once_whenever_a_rank_is_lost(tmp_path: Path) -> None:
    """Lost before the first checkpoint, in a batch after it, and while a later checkpoint is written.

    The KL term needs the weights of the start of the run, also after a restart.
    """
    save_folder(tiny_model(), tmp_path / "model")
    recipe = config(tmp_path / "model", kl=0.3)
    first, second = batches(renderer_of(recipe))
    with on_ranks(recipe) as undisturbed:
        wanted = train(undisturbed, first, second, first)
        undisturbed.save(tmp_path / "wanted")

    ranks, reports, saved = KillableRanks(), list[str](), list[Path]()
    recovery = Recovery(
        launcher=ranks, newest_checkpoint=lambda: saved[-1] if saved else None, report=reports.append
    )
    with closing(restarting(recipe, recovery)) as learner:
        ranks.kill()
        judged = first.updates[0]
        found, right = (one.logprobs(judged, base=False) for one in (learner, alone(recipe)))
        assert [*chain(*found)] == pytest.approx([*chain(*right)], rel=1e-4)

        metrics = train(learner, first)
        learner.save(tmp_path / "saved")
        saved.append(tmp_path / "saved")
        ranks.kill()
        for batch in (second, first):  # in threads, as in asynchronous training
            metrics.append(asyncio.run(in_background(partial(learner.train, batch))))
        assert metrics == wanted
        assert learner.weights().version == 3

        (tmp_path / "ours").mkdir()
        (tmp_path / "ours" / "weights-7.safetensors").write_text("left by an interrupted attempt")
        ranks.kill()
        learner.save(tmp_path / "ours")
        assert tensors(tmp_path / "ours") == tensors(tmp_path / "wanted")
        assert len(learner._trained) == 2
        saved.append(tmp_path / "ours")
        train(learner, second)
        assert len(learner._trained) == 1
    assert reports == ["rank 1 of the learner ended: killed by SIGKILL"] * 3
    assert ranks.starts == 4 and ranks.closed


def test_a_learner_that_keeps_losing_ranks_gives_up(tmp_path: Path) -> None:
    save_folder(tiny_model(), tmp_path)
    recipe = config(tmp_path)
    ranks, reports = DyingRanks(), list[str]()
    recovery = Recovery(launcher=ranks, newest_checkpoint=lambda: None, report=reports.append)
    with closing(restarting(recipe, recovery)) as learner:
        ranks.kill()
        with pytest.raises(
            RankLost, match=r"rank 1 of the learner ended: killed by SIGKILL\. Run the same command"
        ):
            train(learner, *batches(renderer_of(recipe)))
    assert ranks.starts == MAX_ATTEMPTS and len(reports) == MAX_ATTEMPTS - 1
