"""Faults of an engine in this process: functions that plant one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, bfloat16

from arpo.models.lora import adapters_disabled
from arpo.prompts import vision
from arpo.types import Prompt, Sampling

Call = tuple[Prompt, Sampling]
Plant = Callable[[Any], None]
LOST_LAYER = "model.language_model.layers.2."


def asked_as(engine: Any, change: Callable[[Prompt, Sampling], Call]) -> None:
    """The engine gets other prompts or settings than the ones that are recorded."""
    generate = engine.generate
    engine.generate = lambda prompt, sampling: generate(*change(prompt, sampling))


def computes_in(engine: Any, context: Callable[[Any], AbstractContextManager[None]]) -> None:
    """The engine's passes run in this context of its model; in lock step it shares the learner's."""
    for name in ("prefill", "decode"):
        setattr(engine._passes, name, partial(_inside, context, engine._model, getattr(engine._passes, name)))


def _inside(context: Any, model: Any, run: Any, *inputs: Any) -> Any:
    with context(model):
        return run(*inputs)


@contextmanager
def layer_lost(model: Any) -> Iterator[None]:
    weights = [p.data for name, p in model.named_parameters() if name.startswith(LOST_LAYER)]
    kept = [weight.clone() for weight in weights]
    assert weights
    for weight in weights:
        weight.zero_()
    try:
        yield
    finally:
        for weight, before in zip(weights, kept, strict=True):
            weight.copy_(before)


def no_pixels(engine: Any) -> None:
    features = engine._image_features
    engine._image_features = lambda images: [0 * one for one in features(images)]


def other_temperature(engine: Any) -> None:
    asked_as(engine, lambda prompt, sampling: (prompt, replace(sampling, temperature=0.7)))


def other_template(engine: Any) -> None:
    """Without the last token of the prompt, which begins the answer."""
    asked_as(engine, lambda prompt, sampling: (replace(prompt, token_ids=prompt.token_ids[:-1]), sampling))


def swapped_images(engine: Any) -> None:
    asked_as(engine, lambda prompt, sampling: (replace(prompt, images=prompt.images[::-1]), sampling))


def lost_layer(engine: Any) -> None:
    computes_in(engine, layer_lost)


def no_adapters(engine: Any) -> None:
    computes_in(engine, adapters_disabled)


def old_weights(engine: Any) -> None:
    """New weights never reach the passes."""
    old = [p.detach().clone() for p in engine._model.parameters()]

    @contextmanager
    def with_old(model: Any) -> Iterator[None]:
        new = [p.detach().clone() for p in model.parameters()]
        put(model, old)
        try:
            yield
        finally:
            put(model, new)

    computes_in(engine, with_old)


def put(model: Any, weights: Iterable[Tensor]) -> None:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.data.copy_(weight)


def other_size(engine: Any) -> None:
    """The engine resizes pictures to half of their pixels, with the image tokens of that size."""
    own, engine._renderer = engine._renderer, copy.copy(engine._renderer)

    def smaller(prompt: Prompt, sampling: Sampling) -> Call:
        width, height = own.model_size(prompt.images[0])
        half = replace(own.settings, max_pixels=width * height // 2)
        engine._renderer.settings = half
        size = prompt.images[0].size
        before, after = (
            [own.image_token_id] * vision.image_tokens(vision.grid(*size, settings), settings)
            for settings in (own.settings, half)
        )
        tokens, left = list[int](), list(prompt.token_ids)
        while left:
            if left[: len(before)] == before:
                tokens, left = tokens + after, left[len(before) :]
            else:
                tokens.append(left.pop(0))
        return replace(prompt, token_ids=tuple(tokens)), sampling

    asked_as(engine, smaller)


def other_dtype(engine: Any) -> None:
    """The weights are rounded to bfloat16."""

    @contextmanager
    def rounded(model: Any) -> Iterator[None]:
        exact = [p.detach().clone() for p in model.parameters()]
        put(model, [weight.to(bfloat16).to(weight.dtype) for weight in exact])
        try:
            yield
        finally:
            put(model, exact)

    computes_in(engine, rounded)


def misreported(engine: Any) -> None:
    """A fifth of the true probabilities: no setting explains it."""
    generate = engine.generate

    async def answer(prompt: Prompt, sampling: Sampling) -> Any:
        found = await generate(prompt, sampling)
        return replace(found, logprobs=tuple(logprob - 1.6 for logprob in found.logprobs))

    engine.generate = answer
