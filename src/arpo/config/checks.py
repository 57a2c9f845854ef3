"""Checks of the values in a `Config`: their ranges, and values that are valid alone but not together."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from arpo.config.settings import LARGEST, TrainConfig
from arpo.config.task_set_names import split_sources
from arpo.errors import BadSetting
from arpo.types import screen_fault

if TYPE_CHECKING:
    from arpo.config import Config

FRESH = "desk:fresh"  # task source: tasks made on demand
MAX_TEXT = 100_000  # characters of a text setting
MAX_BATCH = 1_000_000  # episodes


def check_ranges(section: str, settings: Any) -> None:
    for entry in fields(settings):
        key, value = f"{section}.{entry.name}", getattr(settings, entry.name)
        if isinstance(value, str):
            if len(value) > MAX_TEXT:
                raise BadSetting(key, f"is {shorten(value)}, must have at most {MAX_TEXT} characters")
            continue
        if isinstance(value, float) and not math.isfinite(value):
            raise BadSetting(key, f"is {value}, must be a finite number")
        bounds = dict(entry.metadata["bounds"])
        if isinstance(value, int) and bounds["<="] is None:
            bounds["<="] = LARGEST
        for relation, bound in bounds.items():
            if bound is not None and not _holds(value, relation, bound):
                raise BadSetting(key, f"is {shorten(value)}, must be {relation} {bound}")


def shorten(value: object) -> str:
    """The value as in Python, cut after 80 characters. For error messages."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _holds(value: float, relation: str, bound: float) -> bool:
    return {">=": value >= bound, ">": value > bound, "<=": value <= bound, "<": value < bound}[relation]


def check_combinations(config: Config) -> None:
    """Raise BadSetting for values valid alone, but invalid together."""
    train, rollout, tasks = config.train, config.rollout, config.tasks
    if not config.run.dir:
        raise BadSetting("run.dir", "is empty, must be the output directory of the run")
    if train.tasks_per_batch % train.tasks_per_update:
        raise BadSetting(
            "train.tasks_per_update",
            f"is {train.tasks_per_update}, must divide train.tasks_per_batch ({train.tasks_per_batch}): "
            "a group is never split across updates",
        )
    if train.tasks_per_batch * rollout.group_size > MAX_BATCH:
        raise BadSetting(
            "train.tasks_per_batch",
            f"is {train.tasks_per_batch} x {rollout.group_size} episodes, must be <= {MAX_BATCH}",
        )
    if tasks.train in split_sources(tasks.heldout):
        raise BadSetting("tasks.heldout", f"is {tasks.train!r}, must differ from tasks.train")
    _check_fresh(config)
    _check_cluster(config)
    if train.max_staleness:
        _check_asynchronous(config.train)
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
    if fault := screen_fault(config.env.width, config.env.height):
        raise BadSetting(
            "env.width", f"is {config.env.width}, with env.height = {config.env.height}: a screen {fault}"
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
    if config.plugins.curriculum and train.curriculum != "none":
        raise BadSetting(
            "train.curriculum",
            f"is {train.curriculum}, must be none with plugins.curriculum, which decides the order of tasks",
        )
    if config.replay.seeds and not (config.replay.enabled or config.loss.teacher):
        raise BadSetting(
            "replay.seeds",
            f"is {shorten(config.replay.seeds)}, must be empty with replay.enabled = false: only replay and "
            "loss.teacher use seeds",
        )
    if config.loss.teacher and not config.replay.seeds and train.method == "online":
        raise BadSetting(
            "loss.teacher",
            f"is {config.loss.teacher:g}, must be 0 without replay.seeds: name the folder with the teacher's "
            "successes, of `arpo collect`",
        )
    if train.dynamic_sampling and config.replay.enabled:
        raise BadSetting(
            "train.dynamic_sampling",
            "is true, must be false with replay.enabled = true: it replaces the groups that replay would "
            "rescue; set replay.enabled = false",
        )


def _check_fresh(config: Config) -> None:
    """Raise BadSetting for settings that need, or exclude, tasks made on demand."""
    train, fresh = config.train, config.tasks.train == FRESH
    if config.endless and not train.tasks:
        raise BadSetting(
            "train.tasks",
            f"is 0, must be the number of tasks to play with tasks.train = {FRESH}: its tasks have no end",
        )
    replays = config.replay.enabled and train.method == "online"
    if config.endless and replays:
        raise BadSetting(
            "replay.enabled",
            f"is true, must be false with tasks.train = {FRESH}: no task is played twice, so none has a "
            "stored success; or set tasks.distinct to a number of tasks that repeat",
        )
    if fresh and train.curriculum != "none":
        raise BadSetting(
            "train.curriculum",
            f"is {train.curriculum}, must be none with tasks.train = {FRESH}: its tasks have no screening "
            "counts; `arpo screen` makes a list with counts",
        )
    if fresh and config.plugins.curriculum:
        raise BadSetting(
            "plugins.curriculum",
            f"is {shorten(config.plugins.curriculum)}, must be empty with tasks.train = {FRESH}: it orders a "
            "list of tasks",
        )


def _check_cluster(config: Config) -> None:
    """Raise BadSetting for environment hosts without a cluster, or without environments."""
    hosts = config.cluster.hosts
    if hosts and not config.cluster.ray:
        raise BadSetting("cluster.hosts", f"is {hosts}, must be 0 without a cluster: set cluster.ray = auto")
    if hosts and config.env.hosts:
        raise BadSetting("cluster.hosts", f"is {hosts}, must be 0 with env.hosts: leave one of them empty")
    if hosts > config.env.parallel:
        raise BadSetting(
            "cluster.hosts",
            f"is {hosts}, must be <= env.parallel ({config.env.parallel}): each host needs an environment",
        )


def _check_asynchronous(train: TrainConfig) -> None:
    """Raise BadSetting for settings incompatible with asynchronous training."""
    if train.method != "online":
        raise BadSetting(
            "train.max_staleness",
            f"is {train.max_staleness}, must be 0 with train.method = {train.method}: offline training plays "
            "no training tasks",
        )
    if train.dynamic_sampling:
        raise BadSetting(
            "train.dynamic_sampling",
            f"is true, must be false with train.max_staleness = {train.max_staleness}: it fills a batch that "
            "one policy plays; set train.max_staleness = 0",
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
            "stored answers are older. Add --loss.kl 0",
        )
    if config.loss.teacher:
        raise BadSetting(
            "loss.teacher",
            f"is {config.loss.teacher:g}, must be 0 {method}: it adds to the loss of online training",
        )
    if config.reward.judge:
        raise BadSetting(
            "reward.judge",
            f"is {config.reward.judge:g}, must be 0 {method}: stored episodes have their scores",
        )
    if config.replay.seeds:
        raise BadSetting(
            "replay.seeds",
            f"is {shorten(config.replay.seeds)}, must be empty {method}: offline training has no replay; "
            "set offline.source",
        )
    if config.train.curriculum != "none":
        raise BadSetting(
            "train.curriculum",
            f"is {config.train.curriculum}, must be none {method}: offline training plays no training tasks",
        )
    for name in ("reward", "advantage", "curriculum"):
        if plugin := getattr(config.plugins, name):
            raise BadSetting(
                f"plugins.{name}",
                f"is {shorten(plugin)}, must be empty {method}: offline training plays no training tasks",
            )
    if config.train.dynamic_sampling:
        raise BadSetting(
            "train.dynamic_sampling",
            f"is true, must be false {method}: offline training plays no training tasks",
        )
    if config.store.token_stats:
        raise BadSetting(
            "store.token_stats", f"is true, must be false {method}: this method has no ratio and no clipping"
        )
