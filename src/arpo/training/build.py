"""Opens the parts that learn, for a recipe: the learner of a player's model, and the curriculum."""

from __future__ import annotations

from arpo.algorithms.curriculum import Curriculum
from arpo.config import Config
from arpo.envs.task_files import load_counts
from arpo.errors import UserError
from arpo.learner.base import Learner
from arpo.learner.local import LocalLearner
from arpo.learner.sharded import ShardedLearner
from arpo.models.trainable import base_model_of, set_trainable
from arpo.rollout.player import Player


def open_learner(player: Player, config: Config) -> Learner:
    """The learner that trains the player's model. optim.ranks > 1 starts further processes."""
    model, renderer = player.model, player.token_renderer
    set_trainable(model, config.model, config.run.seed)
    if config.optim.ranks > 1:
        return ShardedLearner(model, renderer, config)
    base = base_model_of(model) if config.compares_with_base else None
    return LocalLearner(model, renderer, config, base)


def open_curriculum(config: Config) -> Curriculum:
    """The curriculum of train.curriculum. Raises UserError if it needs screening counts and has none."""
    kind, source = config.train.curriculum, config.tasks.train
    counts = load_counts(source, config.tasks.examples) if kind != "none" else {}
    if kind != "none" and not counts:
        raise UserError(
            f"train.curriculum = {kind!r}: {source} has no screening counts. Create a list with counts: "
            f"`arpo screen --tasks {source} --out kept.json`, then set tasks.train to it"
        )
    return Curriculum(kind=kind, passes=config.train.epochs, counts=counts)
