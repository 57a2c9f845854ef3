"""Assigns GPUs to each server, and says whether a learner uses them too.

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
    """GPUs of each server, as in CUDA_VISIBLE_DEVICES; "" on a CPU.

    `shared`: with a learner. `servers_per_gpu`: the largest number of servers on one GPU.
    """

    gpus: tuple[str, ...]
    shared: bool = False
    servers_per_gpu: int = 1


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
    """engine.gpus_per_server of `count` GPUs for each server.

    0 replicas: as many servers as engine.gpus allows, or one alone. Without engine.gpus, servers get the GPUs
    without a learner. If there are too few, they share the GPUs of the learner.
    """
    each = config.engine.gpus_per_server
    learner = range(config.optim.ranks if learning else 0)
    free = [gpu for gpu in range(count) if gpu not in learner]
    chosen = parse_gpus(config.engine.gpus) or (free if len(free) >= each else list(range(count)))
    if beyond := [gpu for gpu in chosen if gpu >= count]:
        raise BadSetting("engine.gpus", f"names GPU {beyond[0]}, this machine has {count} (0 is the first)")
    wanted = replicas or (len(chosen) // each if config.engine.gpus else 1)
    if not wanted or wanted * each > len(chosen):
        raise BadSetting(
            "engine.replicas",
            f"is {replicas}, must be at most {len(chosen) // each}: each server needs "
            f"{'a GPU' if each == 1 else f'{each} GPUs'} (engine.gpus)",
        )
    servers = [chosen[number * each : (number + 1) * each] for number in range(wanted)]
    if double := next((gpus for gpus in servers if len(set(gpus)) < each), None):
        raise BadSetting("engine.gpus", f"one server cannot use GPU {double[0]} twice")
    used = [gpu for gpus in servers for gpu in gpus]
    visible = list(filter(None, environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    return Placement(
        gpus=tuple(",".join(visible[gpu] if visible else str(gpu) for gpu in gpus) for gpus in servers),
        shared=any(gpu in learner for gpu in used),
        servers_per_gpu=max(map(used.count, used)),
    )


def parse_gpus(text: str) -> list[int]:
    """Numbers of GPUs. A number that occurs twice means two servers on this GPU.

    >>> parse_gpus("0,2-4")
    [0, 2, 3, 4]
    """
    found: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        named = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        numbers = range(int(named[1]), int(named[2] or named[1]) + 1) if named else ()
        if not numbers or numbers[-1] >= MAX_GPUS:
            raise BadSetting(
                "engine.gpus", f"{part!r} is neither a number nor a range: use for example 0,2-7"
            )
        found += numbers
    return found
