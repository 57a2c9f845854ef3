"""Engines of both kinds in this process, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from arpo.engines.in_process import InProcessEngine
from arpo.engines.pool_passes import PoolPasses
from arpo.engines.slot_passes import SlotPasses
from arpo.prompts.rendering import Renderer

NewEngine = Callable[..., InProcessEngine]


def slot_engine(model: Any, renderer: Renderer, *, slots: int, version: int = 0) -> InProcessEngine:
    return InProcessEngine(model, renderer, SlotPasses(model, renderer.pad_id, slots), version=version)


def pool_engine(
    model: Any,
    renderer: Renderer,
    *,
    slots: int,
    version: int = 0,
    max_tokens: int = 512,
    gigabytes: float = 0,
) -> InProcessEngine:
    passes = PoolPasses(model, renderer.pad_id, episodes=slots, max_tokens=max_tokens, gigabytes=gigabytes)
    return InProcessEngine(model, renderer, passes, version=version)
