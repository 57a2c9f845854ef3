"""Typed failures, and the one boundary that attributes every error that escapes from elsewhere.

A user's mistake is a `UserError`: one line that names the place and the remedy. A fault of an environment or
an engine is an `ArpoFault` that says where it happened. Nothing here turns an error into a value.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class UserError(ValueError):
    """Bad input: a recipe, a task file, a checkpoint, a path. The command line prints it and exits with 2."""


class ArpoFault(Exception):
    """Something outside our logic failed. `where` names the call that it escaped from."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where
        self.message = message


class EnvError(ArpoFault):
    """An environment raised, hung or answered nonsense."""


class EnvTimeout(EnvError):
    """An environment's call took longer than it may."""


class EngineError(ArpoFault):
    """The inference engine raised or died."""


class ContextTooLong(EngineError):
    """Prompt and answer do not fit into the model's context: a limit, which ends an episode, not a fault."""


@asynccontextmanager
async def boundary(fault: type[ArpoFault], where: str, seconds: float | None = None) -> AsyncIterator[None]:
    """Attribute whatever escapes from the block to `where`; with `seconds`, also its taking too long.

    A cancellation that nobody asked this task for (an awaited task of the block's own was cancelled) is a
    fault too: let through, it would end the whole run without a word.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except ArpoFault:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise fault(where, "CancelledError: what it waited for was cancelled") from error
    except Exception as error:
        if isinstance(error, TimeoutError) and limit.expired():
            late = EnvTimeout if issubclass(fault, EnvError) else fault
            raise late(where, f"no answer within {seconds:g} s") from error
        raise fault(where, f"{type(error).__name__}: {error}") from error
