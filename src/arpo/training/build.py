"""Opens the learning parts of a recipe: the learner of a player's model, the curriculum, the credit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from arpo.algorithms.credit import Credit
from arpo.cluster.ranks import open_ranks
from arpo.config import Config
from arpo.envs.desk.fresh import fresh_families
from arpo.errors import UserError
from arpo.learner.base import Learner
from arpo.learner.local import LocalLearner
from arpo.learner.restarting import Recovery, RestartingLearner
from arpo.learner.sharded import ShardedLearner
from arpo.models.trainable import base_model_of, copy_trained, set_trainable
from arpo.plugins import open_plugin
from arpo.rollout.player import Player
from arpo.tasks.curriculum import Curriculum, PluginCurriculum
from arpo.tasks.family_signal import FamilySignal
from arpo.tasks.lists import load_counts
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


def open_curriculum(config: Config) -> Curriculum | PluginCurriculum | FamilySignal:
    """The curriculum of the plug-in or of train.curriculum.

    Raises UserError if it needs screening counts and has none.
    """
    if plugin := open_plugin(config, "curriculum"):
        return PluginCurriculum(plugin)
    kind, source = config.train.curriculum, config.tasks.train
    if kind == "adaptive":
        return FamilySignal(fresh_families, config.replay.threshold)
    counts = load_counts(source, config.tasks.examples) if kind != "none" else {}
    if kind != "none" and not counts:
        raise UserError(
            f"train.curriculum = {kind!r}: {source} has no screening counts. Create a list with counts: "
            f"`arpo screen --tasks {source} --out kept.json`, then set tasks.train to it"
        )
    return Curriculum(kind=kind, passes=config.train.epochs, counts=counts, total=config.train.tasks)
