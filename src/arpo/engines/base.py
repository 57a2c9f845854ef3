"""The engine protocol: prompts in, sampled tokens with their log-probabilities out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from arpo.types import Completion, Prompt, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A policy version and a handle on its weights: a module of this process. Tensors never travel."""

    version: int
    handle: Any


class Engine(Protocol):
    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion: ...

    async def release(self, episode_id: str) -> None:
        """The episode is over: drop what is cached for it."""
        ...

    async def load(self, weights: Weights) -> None:
        """Serve this version from now on. Caches of older versions are dropped."""
        ...
