"""Token statistics of the learner, compared with a plain computation on a copy of its model."""

from __future__ import annotations

import copy
from dataclasses import replace
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from arpo.config import Config, OptimConfig, ReplayConfig, RunConfig, StoreConfig
from arpo.learner.base import Batch, TokenStats
from arpo.learner.local import LocalLearner
from arpo.models.forward import sampled_logprobs
from arpo.types import Message, Sample
from tiny_vlm import screenshot, tiny_model, tiny_renderer

RENDERER = tiny_renderer()


def sample(rng: Random, advantage: float, *, replayed: bool = False) -> Sample:
    message = Message(role="user", text="open the file", screenshot=screenshot(rng.randrange(99), 56))
    rendered = RENDERER.render([message])
    sampled = [rng.randrange(4, 30) for _ in range(rng.randint(2, 9))]
    return Sample(
        token_ids=(*rendered.token_ids, *sampled),
        mask=(False,) * len(rendered.token_ids) + (True,) * len(sampled),
        images=rendered.images,
        behaviour_logprobs=tuple(-rng.uniform(2, 5) for _ in sampled),
        advantage=advantage,
        weight=0.1,
        replayed=replayed,
    )


def batch() -> Batch:
    """The last update has samples of the first one again, one of them with another sign."""
    rng = Random(5)
    first = (sample(rng, 1.0), sample(rng, -1.0), sample(rng, 2.0, replayed=True))
    second = (replace(first[1], advantage=-1.5), replace(first[0], advantage=-1.0))
    return Batch(updates=(first, (), second))


def config(**store: Any) -> Config:
    """Micro-batches of one or two samples. The rate moves the policy beyond the clip within one step."""
    return Config(
        run=RunConfig(threads=1),
        replay=ReplayConfig(ratio="behaviour"),
        optim=OptimConfig(lr=0.02, warmup_updates=0, tokens_per_microbatch=60),
        store=StoreConfig(**store),
    )


def trained(**store: Any) -> tuple[LocalLearner, dict[str, float]]:
    learner = LocalLearner(tiny_model(), RENDERER, config(**store))
    return learner, dict(learner.train(batch()))


def policy(model: Any, one: Sample) -> tuple[Tensor, Tensor]:
    """Log-probability of each sampled token, and the entropy before it, from the logits of one sample."""
    with torch.no_grad():
        logp_T, entropy_T = sampled_logprobs(model, [one], RENDERER, 1.0)
    return logp_T, entropy_T


def test_values_equal_those_of_a_plain_computation() -> None:
    """π_old is the model before the batch; the second update sees the model after one step."""
    learner, metrics = trained(token_stats=True)
    before = tiny_model().eval()
    once = LocalLearner(tiny_model(), RENDERER, config())
    once.train(Batch(updates=batch().updates[:1]))
    after = copy.deepcopy(once.weights().handle)

    first, empty, second = learner.token_stats()
    assert empty == ()
    for update, samples, model in ((first, batch().updates[0], before), (second, batch().updates[2], after)):
        for stats, one in zip(update, samples, strict=True):
            logp_T, entropy_T = policy(model, one)
            behaviour_T = torch.tensor(one.behaviour_logprobs)
            ratio_T = (logp_T - (behaviour_T if one.replayed else policy(before, one)[0])).exp()
            assert stats.entropy == pytest.approx(entropy_T.tolist(), rel=1e-4)
            assert stats.ratio == pytest.approx(ratio_T.tolist(), rel=1e-3)
            outside_T = ratio_T > 1.3 if one.advantage > 0 else ratio_T < 0.8
            assert stats.clipped == tuple(outside_T.tolist())
    every = [stats for update in (first, second) for stats in update]
    assert (
        sum(map(sum, (stats.clipped for stats in every))) == metrics["clip_fraction"] * metrics["tokens"] > 0
    )
    assert not all(map(all, (stats.clipped for stats in every)))


def test_recording_does_not_change_training() -> None:
    recorded, with_it = trained(token_stats=True)
    plain, without = trained()
    assert with_it == without
    pairs = zip(*(one.weights().handle.parameters() for one in (recorded, plain)), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert plain.token_stats() == ()


def test_only_the_last_batch_is_kept() -> None:
    learner, _ = trained(token_stats=True)
    single = Batch(updates=(batch().updates[0][:1],))
    learner.train(single)
    [[stats]] = learner.token_stats()
    assert isinstance(stats, TokenStats) and len(stats.ratio) == len(single.updates[0][0].behaviour_logprobs)
    learner.train(Batch(updates=((),)))
    assert learner.token_stats() == ()
