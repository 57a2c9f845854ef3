"""Assigns one GPU to each server, and says whether a learner uses it too.

GPUs are numbered as torch numbers them. A learner has the first ones, one per rank (optim.ranks).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from arpo.config import Config, EngineConfig
from arpo.errors import BadSetting

MAX_GPUS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """GPU of each server, as in CUDA_VISIBLE_DEVICES; "" on a CPU. `shared`: with a learner."""

    gpus: tuple[str, ...]
    shared: bool = False


def place_on_cpu(engine: EngineConfig, replicas: int) -> Placement:
    if engine.gpus:
        raise BadSetting("engine.gpus", f"is {engine.gpus!r}, but this vLLM is a CPU build: leave it empty")
    return Placement(gpus=("",) * (replicas or 1))


def place_on_gpus(
    config: Config,
    replicas: int,
    count: int,
    *,
    learning: bool,
    environ: Mapping[str, str] = os.environ,
) -> Placement:
    """One GPU per server, of `count` GPUs. 0 replicas: one server on each GPU of engine.gpus, or one alone.

    Without engine.gpus, servers get the GPUs without a learner. If there are none, they share the GPUs of
    the learner.
    """
    learner = range(config.optim.ranks if learning else 0)
    free = [gpu for gpu in range(count) if gpu not in learner]
    chosen = parse_gpus(config.engine.gpus) or free or list(range(count))
    if beyond := [gpu for gpu in chosen if gpu >= count]:
        raise BadSetting("engine.gpus", f"names GPU {beyond[0]}, this machine has {count} (0 is the first)")
    wanted = replicas or (len(chosen) if config.engine.gpus else 1)
    if wanted > len(chosen):
        raise BadSetting(
            "engine.replicas",
            f"is {wanted}, must be at most {len(chosen)}: each server needs a GPU (engine.gpus)",
        )
    used = chosen[:wanted]
    shared = any(gpu in learner for gpu in used)
    if shared and config.train.max_staleness:
        raise BadSetting(
            "train.max_staleness",
            f"is {config.train.max_staleness}, must be 0 if servers and learner share a GPU: the servers "
            "sleep while it learns. Give them other GPUs (engine.gpus)",
        )
    visible = list(filter(None, environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    return Placement(gpus=tuple(visible[gpu] if visible else str(gpu) for gpu in used), shared=shared)


def parse_gpus(text: str) -> list[int]:
    """Numbers of GPUs, each once.

    >>> parse_gpus("0,2-4")
    [0, 2, 3, 4]
    """
    found: dict[int, None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        named = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        numbers = range(int(named[1]), int(named[2] or named[1]) + 1) if named else ()
        if not numbers or numbers[-1] >= MAX_GPUS:
            raise BadSetting(
                "engine.gpus", f"{part!r} is neither a number nor a range: use for example 0,2-7"
            )
        found |= dict.fromkeys(numbers)
    return list(found)
