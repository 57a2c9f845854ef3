"""New weights under running requests: caches stay, each token has the version that sampled it."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest
import torch

from arpo.config import ModelConfig
from arpo.engines.base import Weights
from arpo.engines.in_process import InProcessEngine
from arpo.engines.pool_passes import PoolPasses
from arpo.engines.slot_passes import SlotPasses
from arpo.models.trainable import copy_trained, set_trainable
from arpo.types import Completion
from engines import NewEngine
from tiny_vlm import (
    QWEN2_5,
    QWEN3_5,
    first_prompt,
    next_prompt,
    sampling,
    screenshot,
    tiny_model,
    tiny_of,
    tiny_renderer,
)

RENDERERS = {family: tiny_renderer(family) for family in (QWEN2_5, QWEN3_5)}
PROMPTS = {family: first_prompt(renderer, "e", screenshot(1)) for family, renderer in RENDERERS.items()}
TOKENS = 8
SEED = 1  # its answer has TOKENS tokens
EACH_FAMILY = pytest.mark.parametrize("family", RENDERERS)


def slots(model: Any) -> SlotPasses:
    return SlotPasses(model, RENDERERS[model.config.model_type].pad_id, 2)


def pool(model: Any) -> PoolPasses:
    return PoolPasses(model, RENDERERS[model.config.model_type].pad_id, episodes=2, max_tokens=512)


@pytest.fixture(params=[slots, pool])
def new_engine(request: pytest.FixtureRequest) -> NewEngine:
    def engine(model: Any) -> InProcessEngine:
        renderer = RENDERERS[model.config.model_type]
        return InProcessEngine(model, renderer, request.param(model), version=3, in_flight=True)

    return engine


async def answer(engine: InProcessEngine, newer: Any = None, family: str = QWEN2_5) -> Completion:
    """The answer to the prompt of the family. After three tokens, `newer` becomes version 4."""
    asked = asyncio.create_task(engine.generate(PROMPTS[family], sampling(SEED, TOKENS)))
    if newer is not None:
        while engine.stats.decoded_tokens < 3:  # noqa: ASYNC110  (the engine runs in this loop)
            await asyncio.sleep(0)
        await engine.load(Weights(version=4, handle=newer))
    return await asked


@EACH_FAMILY
def test_an_answer_goes_on_with_the_new_weights(new_engine: NewEngine, family: str) -> None:
    model, newer = tiny_of(family, 0), tiny_of(family, 1)
    old = asyncio.run(answer(new_engine(copy.deepcopy(model)), family=family))
    mixed = asyncio.run(answer(new_engine(model), newer, family))
    assert old.versions == (3,) * TOKENS
    assert mixed.versions == (3, 3, 3, 4, 4, 4, 4, 4)
    assert mixed.policy_version == 3
    assert (mixed.token_ids[:3], mixed.logprobs[:3]) == (old.token_ids[:3], old.logprobs[:3])
    assert mixed.logprobs[3] != old.logprobs[3]


@EACH_FAMILY
def test_equal_weights_change_only_the_version(new_engine: NewEngine, family: str) -> None:
    """Nothing is computed again: keys, values and states stay."""
    model = tiny_of(family)
    quiet, updated = new_engine(copy.deepcopy(model)), new_engine(copy.deepcopy(model))
    old, new = asyncio.run(answer(quiet, family=family)), asyncio.run(answer(updated, model, family))
    assert (new.token_ids, new.logprobs) == (old.token_ids, old.logprobs)
    assert updated.stats == quiet.stats


@EACH_FAMILY
def test_the_next_turn_uses_the_old_keys_and_encodes_new_screenshots(
    new_engine: NewEngine, family: str
) -> None:
    engine, prompt = new_engine(tiny_of(family, 0)), PROMPTS[family]

    async def two_turns() -> tuple[int, int, Completion]:
        first = await answer(engine, tiny_of(family, 1), family)
        before = copy.copy(engine.stats)
        second = next_prompt(RENDERERS[family], prompt, first, screenshot(1))  # the same screenshot again
        new = await engine.generate(second, sampling(2, 1))
        prefilled = engine.stats.prefilled_tokens - before.prefilled_tokens
        assert prefilled < len(second.token_ids) - len(prompt.token_ids)
        return prefilled, engine.stats.images_encoded - before.images_encoded, new

    prefilled, encoded, new = asyncio.run(two_turns())
    assert prefilled > 0
    assert encoded == 1  # features of older weights are not used again
    assert new.versions == (4,)


@pytest.mark.parametrize("train", ["all", "language", "lora"])
def test_the_engine_keeps_its_weights_until_it_loads_new_ones(train: Any) -> None:
    """The learner trains a copy, which shares only frozen weights."""
    model: Any = tiny_model()
    set_trainable(model, ModelConfig(train=train, lora_rank=4), 0)
    learned = copy_trained(model)
    engine = InProcessEngine(model, RENDERERS[QWEN2_5], slots(model), in_flight=True)
    old = asyncio.run(answer(engine))
    with torch.no_grad():
        for parameter in learned.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    asyncio.run(engine.release("e"))
    assert asyncio.run(answer(engine)) == old
    asyncio.run(engine.release("e"))
    asyncio.run(engine.load(Weights(version=1, handle=learned)))
    new = asyncio.run(answer(engine))
    fresh = InProcessEngine(learned, RENDERERS[QWEN2_5], slots(learned), version=1)
    assert new == asyncio.run(answer(fresh)) != old
