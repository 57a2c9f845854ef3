"""The engine protocol: prompts in, sampled tokens with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from arpo.types import Completion, Prompt, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A policy version and a handle on its weights. Tensors are never copied into a message.

    The in-process learner and engine share one module:

        Weights(version=7, handle=model)
    """

    version: int
    handle: Any


class Engine(Protocol):
    """Samples answers for many episodes at once. `engines/factory.py` chooses one by `engine.name`.

    A minimal engine, which always answers with the same tokens:

        class Constant:
            async def start(self) -> Sequence[str]:
                return ()

            async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
                return Completion(
                    token_ids=(5, 2), logprobs=(0.0, 0.0), text="wait()", finish="stop", versions=(0, 0)
                )

            async def release(self, episode_id: str) -> None: ...
            async def load(self, weights: Weights) -> None: ...
            async def close(self) -> None: ...
    """

    async def start(self) -> Sequence[str]:
        """Connect, before the first request. Returns messages for the user.

        Raises UserError if the engine cannot serve at all.
        """
        ...

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Completion:
        """Sample one answer. Raises EngineError if that failed, ContextTooLong if the prompt is too long."""
        ...

    async def release(self, episode_id: str) -> None:
        """Drop the caches of an ended episode."""
        ...

    async def load(self, weights: Weights) -> None:
        """Serve this version from now on. Drops the caches of older versions."""
        ...

    async def close(self) -> None:
        """Free connections. A closed engine can be started again."""
        ...


class ServedEngine(Engine, Protocol):
    """An engine whose model runs on servers. A player may start them, and let them sleep for a learner."""

    report: Callable[[str], None]  # receives messages for the user

    def use_servers(self, addresses: Sequence[Callable[[], str]], key: str) -> None:
        """Use these servers, which the player has started. Each function returns the current URL of one."""
        ...

    def stop(self) -> None:
        """End a pause in which no server works, with `Outage`."""
        ...

    async def sleep(self) -> Sequence[int]:
        """Free the memory of the servers' GPUs. No request is made until `wake`.

        Returns the numbers of the servers that failed. They are unusable until they restart.
        """
        ...

    async def wake(self) -> Sequence[int]:
        """Take the memory again. Returns the numbers of the servers that failed."""
        ...
