"""Opens the learning parts of a recipe: the learner of a player's model, the credit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arpo.algorithms.credit import Credit
from arpo.cluster.ranks import open_ranks
from arpo.config import Config
from arpo.learner.base import Learner
from arpo.learner.local import LocalLearner
from arpo.learner.restarting import Recovery, RestartingLearner
from arpo.learner.sharded import ShardedLearner
from arpo.models.trainable import base_model_of, copy_trained, set_trainable
from arpo.plugins import open_plugin
from arpo.rollout.player import Player
from arpo.tasks.sources import TaskIndex


def open_recovery(
    config: Config, newest_checkpoint: Callable[[], Path | None], report: Callable[[str], None]
) -> Recovery | None:
    """The places of learner ranks on the cluster, None without one. Call it before torch uses a GPU."""
    launcher = open_ranks(config) if config.cluster.ray else None
    if launcher is None:
        return None
    return Recovery(launcher=launcher, newest_checkpoint=newest_checkpoint, report=report)


def open_learner(player: Player, config: Config, recovery: Recovery | None = None) -> Learner:
    """The learner of the player's model. optim.ranks > 1 starts further processes.

    With `recovery`, these are on a cluster, and a lost one is replaced.
    """
    model, renderer = player.model, player.token_renderer
    set_trainable(model, config.model, config.run.seed)
    if config.trains_a_copy:
        model = copy_trained(model)
    if recovery is not None:
        return RestartingLearner(ShardedLearner(model, renderer, config, recovery.launcher), recovery)
    if config.optim.ranks > 1:
        return ShardedLearner(model, renderer, config)
    base = base_model_of(model) if config.compares_with_base else None
    return LocalLearner(model, renderer, config, base)


def open_credit(config: Config, tasks: TaskIndex) -> Credit:
    """Rewards and advantages: of the plug-ins, or of [loss]. `tasks` are those of the episodes."""
    reward, advantage = open_plugin(config, "reward"), open_plugin(config, "advantage")
    return Credit(config.loss, reward, advantage, tasks)
