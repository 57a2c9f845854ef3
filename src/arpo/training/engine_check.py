"""Compares engine and learner: both must give the same probability to the same token.

A token is fresh if exactly the weights of the learner have sampled it. The updates of a batch compare their
fresh tokens without further work. If they have too few, because groups have no signal, other fresh episodes
are scored. If these are too few, because others are stale, the engine answers some prompts of the batch
again, before the learner changes its weights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

import torch

from arpo.algorithms.losses import TokenSums, engine_metrics, engine_sums
from arpo.algorithms.samples import scored_answer, trajectory_samples
from arpo.config import CHECK_ANSWERS, Config, RolloutConfig
from arpo.engines.base import Engine
from arpo.errors import EngineError, Outage, boundary
from arpo.learner.base import Batch, Learner, Metrics
from arpo.learner.local import loss_tokens
from arpo.rollout.agent import draw_seed
from arpo.types import Group, Prompt, Sample, Sampling, Trajectory

MIN_TOKENS = 128  # compared in a batch if possible: most tokens of a trained policy are certain
MAX_ANSWER_TOKENS = 64  # of an answer that is sampled only for the comparison
# At stale tokens the policies differ by nature: by 0.0003 between two versions on Desk. An engine without
# pixels differs by 6.
STALE_KL_ALARM = 0.5


async def fresh_samples(
    played: Sequence[Group], batch: Batch, version: int, engine: Engine, config: Config
) -> list[Sample]:
    """Samples to be compared in addition to the batch: none if it has enough fresh tokens."""
    if sum(map(_fresh_tokens, chain(*batch.updates))) >= MIN_TOKENS:
        return []
    samples: list[Sample] = []
    episodes = _spread(played)
    for episode in (one for one in episodes if one.policy_version == version):
        samples += trajectory_samples(episode, 0.0, 0.0, False, version=version)
        if sum(map(_fresh_tokens, samples)) >= MIN_TOKENS:
            return samples
    asked = [one for one in episodes if one.policy_version < version][:CHECK_ANSWERS]
    answers = [_sampled_again(one, version, engine, config.rollout, config.run.seed) for one in asked]
    return samples + [sample for sample in await asyncio.gather(*answers) if sample is not None]


def learn(learner: Learner, batch: Batch, fresh: Sequence[Sample], config: Config) -> Metrics:
    """Compare, then train. With train.engine_kl_skip, no update runs if engine and learner disagree.

    The metrics then have the key "untrained".
    """
    skip = config.train.engine_kl_skip
    compared = engine_metrics(compare(learner, [*fresh, *(chain(*batch.updates) if skip else ())]))
    untrained = skip and bool(disagreements(compared, config))
    if untrained:
        batch = replace(batch, updates=((),) * len(batch.updates))
    learned = learner.train(batch)
    if compared["engine_tokens"]:
        learned = {**learned, **compared}
    return {**learned, "untrained": 1.0} if untrained else learned


def compare(learner: Learner, samples: Sequence[Sample]) -> TokenSums:
    """The disagreement at all tokens that are not replayed."""
    own = tuple(sample for sample in samples if not sample.replayed)
    if not own:
        return TokenSums()
    logp_T = torch.tensor([*chain(*learner.logprobs(own, base=False))], dtype=torch.float64)
    return engine_sums(loss_tokens(own, logp_T, logp_T, logp_T))


def disagreements(metrics: Metrics, config: Config) -> list[str]:
    """What exceeds its threshold, in words; NaN does."""
    limit = config.engine_kl_limit(metrics.get("engine_surprise", 1.0))
    limits = (
        ("engine_kl", limit, "train.engine_kl_alarm = "),
        ("stale_kl", STALE_KL_ALARM, ""),
    )
    return [
        f"{name} is {metrics[name]:.2g}, above {setting}{limit:.2g}"
        for name, limit, setting in limits
        if name in metrics and not metrics[name] <= limit
    ]


def _fresh_tokens(sample: Sample) -> int:
    if sample.replayed:
        return 0
    return sample.staleness.count(0) if sample.staleness else sample.sampled_tokens


def _spread(groups: Iterable[Group]) -> list[Trajectory]:
    """The first episode of each group, then the second of each, and so on."""
    rows = zip_longest(*(group.trajectories for group in groups))
    return [episode for row in rows for episode in row if episode is not None]


async def _sampled_again(
    episode: Trajectory, version: int, engine: Engine, settings: RolloutConfig, seed: int
) -> Sample | None:
    """An answer to the last prompt of an episode. None if the engine fails, or has other weights."""
    name = f"check-{version}-{episode.episode_id}"
    prompt = _last_prompt(name, episode)
    sampling = Sampling(
        temperature=settings.temperature,
        max_tokens=min(settings.max_answer_tokens, MAX_ANSWER_TOKENS),
        seed=draw_seed(seed, episode.task_id, name, 0),
    )
    try:
        async with boundary(EngineError, "generate"):
            answer = await engine.generate(prompt, sampling)
        await engine.release(name)
    except (EngineError, Outage):
        return None
    if set(answer.versions) != {version}:
        return None
    return scored_answer(prompt.token_ids, prompt.images, answer.token_ids, answer.logprobs)


def _last_prompt(name: str, episode: Trajectory) -> Prompt:
    [own] = [one for one in episode.sequences() if one[-1] == len(episode.turns) - 1]
    *answered, last = (episode.turns[index] for index in own)
    tokens = [(*turn.context, *turn.completion.token_ids) for turn in answered]
    return Prompt(
        episode_id=name,
        token_ids=(*chain(*tokens), *last.context),
        images=tuple(chain(*(turn.images for turn in (*answered, last)))),
        messages=(),
    )
