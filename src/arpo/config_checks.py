"""Checks across config keys: values valid alone, but invalid together.

`Config` calls `check_combinations` when it is constructed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arpo.errors import BadSetting

if TYPE_CHECKING:
    from arpo.config import Config


def check_combinations(config: Config) -> None:
    """Raise BadSetting for values valid alone, but invalid together."""
    train, rollout, tasks = config.train, config.rollout, config.tasks
    if train.tasks_per_batch % train.tasks_per_update:
        raise BadSetting(
            "train.tasks_per_update",
            f"is {train.tasks_per_update}, must divide train.tasks_per_batch ({train.tasks_per_batch}): "
            "a group is never split across updates",
        )
    if tasks.train == tasks.heldout:
        raise BadSetting("tasks.heldout", f"is {tasks.train!r}, must differ from tasks.train")
    if train.method != "online":
        _check_offline(config)
    if config.model.min_pixels > config.model.max_pixels:
        raise BadSetting(
            "model.min_pixels",
            f"is {config.model.min_pixels}, must be <= model.max_pixels ({config.model.max_pixels})",
        )
    if rollout.max_answer_tokens >= rollout.max_context_tokens:
        raise BadSetting(
            "rollout.max_answer_tokens",
            f"is {rollout.max_answer_tokens}, must be < rollout.max_context_tokens "
            f"({rollout.max_context_tokens}): the context also holds the prompt",
        )
    if config.env.partial and config.env.name != "desk":
        raise BadSetting(
            "env.partial",
            f"is {config.env.partial}, must be 0 with env.name = {config.env.name}: only desk has partial "
            "credit",
        )
    if config.env.partial > config.replay.threshold:
        raise BadSetting(
            "env.partial",
            f"is {config.env.partial}, must be <= replay.threshold ({config.replay.threshold}): "
            "partial credit must not count as a success",
        )
    if train.dynamic_sampling and config.replay.enabled:
        raise BadSetting(
            "train.dynamic_sampling",
            "is true, must be false with replay.enabled = true: it replaces the groups that replay would "
            "rescue; set replay.enabled = false",
        )


def _check_offline(config: Config) -> None:
    """Raise BadSetting for keys of online training."""
    method = f"with train.method = {config.train.method}"
    if config.loss.ratio != "recompute":
        raise BadSetting(
            "loss.ratio", f"is {config.loss.ratio}, must be recompute {method}: this method has no ratio"
        )
    if config.loss.kl:
        raise BadSetting(
            "loss.kl",
            f"is {config.loss.kl}, must be 0 {method}: the KL term needs answers of the current policy, and "
            "stored answers are older",
        )
    if config.train.curriculum != "none":
        raise BadSetting(
            "train.curriculum",
            f"is {config.train.curriculum}, must be none {method}: offline training plays no training tasks",
        )
    if config.train.dynamic_sampling:
        raise BadSetting(
            "train.dynamic_sampling",
            f"is true, must be false {method}: offline training plays no training tasks",
        )
