"""Checks of the values in a `Config`: their ranges, and values that are valid alone but not together."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from arpo.config.settings import LARGEST
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
        bounds["<="] = LARGEST if bounds["<="] is None else bounds["<="]
        for relation, bound in bounds.items():
            if bound is not None and not _holds(value, relation, bound):
                raise BadSetting(key, f"is {shorten(value)}, must be {relation} {bound}")


def shorten(value: object) -> str:
    """The value as in Python, cut after 80 characters. For error messages."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _holds(value: float, relation: str, bound: float) -> bool:
    return {">=": value >= bound, ">": value > bound, "<=": value <= bound, "<": value < bound}[relation]


def _require(config: Config, key: str, wanted: bool | float | str, why: str) -> None:
    """Raise BadSetting if the key has another value: "is true, must be false " and `why`."""
    section, _, name = key.partition(".")
    value = getattr(getattr(config, section), name)
    if value != wanted:
        found = shorten(value) if wanted == "" else _shown(value)
        raise BadSetting(key, f"is {found}, must be {_shown(wanted)} {why}")


def _shown(value: bool | float | str) -> str:
    if isinstance(value, str):
        return value or "empty"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


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
    if train.method != "online":
        _check_offline(config)
    if train.max_staleness:
        why = f"with train.max_staleness = {train.max_staleness}: it fills a batch that one policy plays"
        _require(config, "train.dynamic_sampling", False, f"{why}; set train.max_staleness = 0")
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
    if config.env.name != "desk":
        why = f"with env.name = {config.env.name}: only desk has partial credit"
        _require(config, "env.partial", 0, why)
    if config.env.partial > config.replay.threshold:
        raise BadSetting(
            "env.partial",
            f"is {config.env.partial}, must be <= replay.threshold ({config.replay.threshold}): "
            "partial credit must not count as a success",
        )
    if config.plugins.curriculum:
        why = "with plugins.curriculum, which decides the order of tasks"
        _require(config, "train.curriculum", "none", why)
    if not (config.replay.enabled or config.loss.teacher):
        why = "with replay.enabled = false: only replay and loss.teacher use seeds"
        _require(config, "replay.seeds", "", why)
    if not config.replay.seeds:
        why = "without replay.seeds: name the folder with the teacher's successes, of `arpo collect`"
        _require(config, "loss.teacher", 0, why)
    if config.replay.enabled:
        why = "with replay.enabled = true: it replaces the groups that replay would rescue"
        _require(config, "train.dynamic_sampling", False, f"{why}; set replay.enabled = false")


def _check_fresh(config: Config) -> None:
    """Raise BadSetting for settings that need, or exclude, tasks made on demand."""
    if config.tasks.train != FRESH:
        return
    fresh = f"with tasks.train = {FRESH}"
    if config.endless and not config.train.tasks:
        raise BadSetting(
            "train.tasks", f"is 0, must be the number of tasks to play {fresh}: its tasks have no end"
        )
    if config.endless and config.train.method == "online":
        why = f"{fresh}: no task is played twice, so none has a stored success"
        _require(
            config, "replay.enabled", False, f"{why}; or set tasks.distinct to a number of tasks that repeat"
        )
    why = f"{fresh}: its tasks have no screening counts; `arpo screen` makes a list with counts"
    _require(config, "train.curriculum", "none", why)
    _require(config, "plugins.curriculum", "", f"{fresh}: it orders a list of tasks")


def _check_cluster(config: Config) -> None:
    """Raise BadSetting for environment hosts without a cluster, or without environments."""
    hosts = config.cluster.hosts
    if not config.cluster.ray:
        _require(config, "cluster.hosts", 0, "without a cluster: set cluster.ray = auto")
    if config.env.hosts:
        _require(config, "cluster.hosts", 0, "with env.hosts: leave one of them empty")
    if hosts > config.env.parallel:
        raise BadSetting(
            "cluster.hosts",
            f"is {hosts}, must be <= env.parallel ({config.env.parallel}): each host needs an environment",
        )


def _check_offline(config: Config) -> None:
    """Raise BadSetting for keys of online training."""
    no_tasks = "offline training plays no training tasks"
    kl = "the KL term needs answers of the current policy, and stored answers are older. Add --loss.kl 0"
    needed: tuple[tuple[str, bool | float | str, str], ...] = (
        ("train.max_staleness", 0, no_tasks),
        ("loss.ratio", "recompute", "this method has no ratio"),
        ("loss.kl", 0, kl),
        ("loss.teacher", 0, "it adds to the loss of online training"),
        ("reward.judge", 0, "stored episodes have their scores"),
        ("replay.seeds", "", "offline training has no replay; set offline.source"),
        ("train.curriculum", "none", no_tasks),
        ("plugins.reward", "", no_tasks),
        ("plugins.advantage", "", no_tasks),
        ("plugins.curriculum", "", no_tasks),
        ("train.dynamic_sampling", False, no_tasks),
        ("store.token_stats", False, "this method has no ratio and no clipping"),
    )
    for key, wanted, why in needed:
        _require(config, key, wanted, f"with train.method = {config.train.method}: {why}")
