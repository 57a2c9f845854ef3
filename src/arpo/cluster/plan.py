"""The expected time of a batch on a cluster, its bottleneck, and changes to be faster.

An estimate from the service times, without running anything. Episodes are drawn at random, always the same
ones. Servers are a closed queue: the more requests a server has, the longer each answer takes.

    estimate(load).seconds  # of one batch

Lock step: the slowest episode ends the rollouts, then the learner works, then the servers get new weights.
Asynchronous training: the largest of three periods decides.

- environments: episodes of a batch x mean duration / environments
- learner cycle: learning, writing the weights, rolling update of the servers
- staleness: a group holds one of (S + 1) x groups places from its start until it is trained. It waits half a
  period for its batch, so the period is (slowest episode of a group + learner cycle) / (S + 1/2).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random
from statistics import fmean

from arpo.cluster.service_times import (
    DEFAULT,
    DRIVER_EPISODE,
    DRIVER_SCREENSHOT,
    LIGHT_BOOT,
    LORA,
    LORA_GIB,
    ServiceTimes,
)
from arpo.config import Config
from arpo.engines.http_exchange import endpoints
from arpo.engines.vllm import WAVES
from arpo.errors import BadSetting
from arpo.serving.placement import place_on_gpus

DRAWN_EPISODES = 16_384
ROUNDS = 4
WORTHWHILE = 0.95  # a change is named if the batch takes at most this share of its time
STALENESS = (1, 2, 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Sizes of a cluster and of a recipe. `shared`: servers and learner use the same GPUs in turn."""

    environments: int
    replicas: int
    ranks: int
    groups: int  # per batch
    group_size: int
    groups_per_update: int
    max_staleness: int = 0
    shared: bool = False
    servers: bool = True  # False: the engine of the learner's process samples
    times: ServiceTimes = DEFAULT

    @property
    def episodes(self) -> int:
        """Of a batch."""
        return self.groups * self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of one batch. In lock step they add up; otherwise the parts run at the same time."""

    seconds: float
    rollouts: float
    learning: float
    weights: float  # writing and loading them, and sleep of shared servers
    bottleneck: str

    def per_hour(self, load: Load) -> float:
        return 3600 * load.episodes / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episode:
    answers: int  # of the last attempt
    turns: float  # of all attempts
    outside: float  # seconds without the answers

    def seconds(self, answer: float) -> float:
        return self.outside + self.turns * answer


def load_of(config: Config, nodes: int, gpus: int) -> Load:
    """The recipe on `nodes` machines of `gpus` GPUs. Raises BadSetting if they have too few GPUs."""
    total, engine, train = nodes * gpus, config.engine, config.train
    if config.optim.ranks > total:
        raise BadSetting(
            "optim.ranks",
            f"is {config.optim.ranks}, must be at most {total}: each rank needs a GPU "
            f"({nodes} x {gpus} GPUs)",
        )
    if nodes > 1 and config.samples_in_process:
        raise BadSetting(
            "engine.name",
            f"is {engine.name!r}, must be vllm for {nodes} nodes: the in-process engine uses one GPU. Add "
            "--engine.name vllm --engine.replicas N",
        )
    replicas, shared = 1, True
    if engine.replicas and not config.samples_in_process:
        placement = place_on_gpus(config, engine.replicas, total, learning=True, environ={})
        replicas, shared = engine.replicas, placement.shared
        if shared and (nodes > 1 or config.cluster.ray):
            raise BadSetting(
                "engine.replicas",
                f"is {replicas}, must be at most {total - config.optim.ranks}: on a Ray cluster, servers and "
                "learner ranks do not share GPUs. Lower optim.ranks, or use more nodes",
            )
    elif not config.samples_in_process:
        replicas, shared = len(endpoints(engine.endpoints, "engine.endpoints", "")), False
    return Load(
        environments=config.env.parallel,
        replicas=replicas,
        ranks=config.optim.ranks,
        groups=train.tasks_per_batch,
        group_size=config.rollout.group_size,
        groups_per_update=train.tasks_per_update,
        max_staleness=train.max_staleness,
        shared=shared,
        servers=not config.samples_in_process,
        times=_times_of(config),
    )


def _times_of(config: Config) -> ServiceTimes:
    steps = config.rollout.max_steps
    times = replace(DEFAULT, answers=(min(DEFAULT.answers[0], steps), steps))
    if config.osworld.provider == "local":
        times = replace(times, boot=LIGHT_BOOT)
    return replace(times, learning=LORA, weights_gib=LORA_GIB) if config.model.train == "lora" else times


def estimate(load: Load) -> Estimate:
    batches = _draw_batches(load.times, load.episodes)
    learning = fmean(_learning(load, batch) for batch in batches)
    answer = answer_seconds(load)
    if not load.max_staleness:
        return _lock_step(load, batches, learning, answer)
    result = _asynchronous(load, batches, learning, answer)
    for _ in range(ROUNDS):  # the more often the weights change, the longer an answer takes
        answer = (answer + answer_seconds(load, result.seconds)) / 2
        result = _asynchronous(load, batches, learning, answer)
    return result


def _asynchronous(
    load: Load, batches: Sequence[Sequence[_Episode]], learning: float, answer: float
) -> Estimate:
    weights = load.times.load * (1 + min(WAVES, load.replicas))
    drawn = [[episode.seconds(answer) for episode in batch] for batch in batches]
    slowest = fmean(
        max(batch[start : start + load.group_size])
        for batch in drawn
        for start in range(0, len(batch), load.group_size)
    )
    rollouts = load.episodes * fmean(map(fmean, drawn)) / load.environments
    periods = {
        _sampling_bottleneck(load, answer): rollouts,
        "learner cycle": learning + weights,
        "staleness": (slowest + learning + weights) / (load.max_staleness + 0.5),
    }
    bottleneck = max(periods, key=periods.__getitem__)
    return Estimate(
        seconds=periods[bottleneck],
        rollouts=rollouts,
        learning=learning,
        weights=weights,
        bottleneck=bottleneck,
    )


def _lock_step(load: Load, batches: Sequence[Sequence[_Episode]], learning: float, answer: float) -> Estimate:
    rollouts = fmean(makespan([one.seconds(answer) for one in batch], load.environments) for batch in batches)
    sleep = 2 * load.times.sleep if load.shared else 0.0
    weights = 2 * load.times.load + sleep if load.servers else 0.0
    parts = {_sampling_bottleneck(load, answer): rollouts, "learner": learning, "new weights": weights}
    return Estimate(
        seconds=rollouts + learning + weights,
        rollouts=rollouts,
        learning=learning,
        weights=weights,
        bottleneck=max(parts, key=parts.__getitem__),
    )


def answer_seconds(load: Load, period: float = math.inf) -> float:
    """Mean seconds of an answer, if all environments are in use and the weights change every `period`.

    A server prefills one prompt after the other, and decodes all answers together in the rest of its time.
    New weights empty its cache: the prompts of all running episodes are prefilled again, at half of their
    final length in the mean.
    """
    times, per_replica = load.times, min(load.environments, load.episodes) / load.replicas
    if load.max_staleness:
        per_replica = load.environments / load.replicas
    answers = sum(times.answers) / 2
    idle = fmean(times.boot) + times.evaluation
    prefill = (times.screenshot_tokens + times.mean_answer_tokens) * times.prefill_token
    found = prefill + times.mean_answer_tokens * times.decode(1)
    for _ in range(100):
        episode = idle + answers * (_mean_step(times) + found)
        again = (1 - idle / episode) * answers / 2 * prefill / period
        prefilling = min(0.95, per_replica * (answers * prefill / episode + again))  # share of its time
        running = max(1.0, per_replica * answers * found / episode)
        wanted = (prefill + times.mean_answer_tokens * times.decode(running)) / (1 - prefilling)
        found += (wanted - found) / 10
    return found


def makespan(seconds: Sequence[float], environments: int) -> float:
    """Until the last episode ends, if each free environment takes the next one.

    >>> makespan([3, 1, 1, 2], environments=2)
    4
    """
    free = [0.0] * environments
    for duration in seconds:
        heapq.heapreplace(free, free[0] + duration)
    return max(free)


def driver_cores(load: Load, per_hour: float) -> float:
    """CPU cores of the driver, its threads and its worker processes."""
    screenshots = sum(load.times.answers) / 2
    return per_hour / 3600 * (DRIVER_EPISODE + screenshots * DRIVER_SCREENSHOT)


def improvements(load: Load) -> list[tuple[str, Load, Estimate]]:
    """Changes that save time, the best first: the settings, the load with them, and its estimate."""
    now = estimate(load).seconds
    found = [(words, changed, estimate(changed)) for words, changed in _changes(load)]
    better = [change for change in found if change[2].seconds <= WORTHWHILE * now]
    return sorted(better, key=lambda change: change[2].seconds)


def _changes(load: Load) -> Iterator[tuple[str, Load]]:
    twice = 2 * load.environments
    yield f"--env.parallel {twice}", replace(load, environments=twice)
    gpus = load.ranks if load.shared else load.ranks + load.replicas
    if not load.servers or gpus < 2:
        return
    larger = [staleness for staleness in STALENESS if staleness > load.max_staleness]
    if load.shared and larger:
        half = replace(
            load, replicas=gpus // 2, ranks=gpus - gpus // 2, shared=False, max_staleness=larger[0]
        )
        yield f"{_split_words(half)} --train.max_staleness {larger[0]}", half
    elif larger:
        yield f"--train.max_staleness {larger[0]}", replace(load, max_staleness=larger[0])
    for share in () if load.shared else (1, 2, 3, 5, 6, 7):
        replicas = gpus * share // 8
        if 0 < replicas < gpus and replicas != load.replicas:
            split = replace(load, replicas=replicas, ranks=gpus - replicas)
            yield _split_words(split), split


def _split_words(load: Load) -> str:
    return f"--engine.replicas {load.replicas} --optim.ranks {load.ranks}"


@lru_cache(maxsize=8)
def _draw_batches(times: ServiceTimes, episodes: int) -> tuple[tuple[_Episode, ...], ...]:
    """Batches of so many episodes, always the same ones."""
    random = Random(0)
    batches = -(-DRAWN_EPISODES // episodes)
    return tuple(tuple(_draw_episode(times, random) for _ in range(episodes)) for _ in range(batches))


def _draw_episode(times: ServiceTimes, random: Random) -> _Episode:
    """With the attempts that hang."""
    outside, turns = times.evaluation, 0.0
    while random.random() < times.hangs:
        lost = random.randint(*times.answers) / 2
        turns += lost
        outside += random.uniform(*times.boot) + lost * _mean_step(times) + times.step_timeout
    answers = random.randint(*times.answers)
    outside += random.uniform(*times.boot) + sum(times.step(random) for _ in range(answers))
    return _Episode(answers=answers, turns=turns + answers, outside=outside)


def _learning(load: Load, batch: Sequence[_Episode]) -> float:
    size = load.groups_per_update * load.group_size
    updates = [batch[start : start + size] for start in range(0, len(batch), size)]
    return sum(load.times.update([one.answers for one in update], load.ranks) for update in updates)


def _mean_step(times: ServiceTimes) -> float:
    return times.step_median * math.exp(times.step_sigma**2 / 2)


def _sampling_bottleneck(load: Load, answer: float) -> str:
    """The larger part of an episode."""
    answers = sum(load.times.answers) / 2
    environment = fmean(load.times.boot) + load.times.evaluation + answers * _mean_step(load.times)
    return "servers" if answers * answer > environment else "environments"
