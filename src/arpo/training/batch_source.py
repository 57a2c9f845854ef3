"""Where the batches of online training come from: played in lock step, or by asynchronous rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from arpo.types import Group


class BatchSource(AbstractAsyncContextManager["BatchSource"], Protocol):
    """`async with source`: at the end, all of its environments are closed."""

    async def next_batch(self) -> list[Group] | None:
        """The played groups of the next batch, stored and counted. None if the run shall stop.

        Raises Outage if no environment works.
        """
        ...

    def trained(self) -> None:
        """The last batch is trained on, and the engine has the new weights."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last batch beyond those of its groups."""
        ...

    def state(self) -> dict[str, Any]:
        """Its part of a checkpoint, as JSON. Called when a checkpoint is written."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint. Called before the first batch."""
        ...

    def waiting_episodes(self) -> set[str]:
        """Ids of stored episodes for a later batch."""
        ...
