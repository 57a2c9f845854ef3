"""The learner in a thread of its own, for asynchronous training: rollouts continue while it works.

    metrics = await in_background(partial(learner.train, batch))

The thread shares no weights with the engine, which samples from a copy.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

_T = TypeVar("_T")
_SWITCH_SECONDS = 0.001  # the event loop waits this long for the interpreter; Python's default is 0.005


async def in_background(work: Callable[[], _T]) -> _T:
    """Call a function in a thread and return its result, or raise its exception.

    If the caller is cancelled, this waits until the thread has ended, and then raises CancelledError: half an
    update must not be saved, and nothing may compute with freed resources. The learner bounds its own waits.
    """
    loop = asyncio.get_running_loop()
    # A thread per call: none is left at the end of the run.
    with _short_turns(), ThreadPoolExecutor(1, "learner") as thread:
        result = loop.run_in_executor(thread, work)
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            await _end_of(result)
            raise


@contextmanager
def _short_turns() -> Iterator[None]:
    """During the block, a thread with Python code yields to the event loop sooner."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


async def _end_of(result: asyncio.Future[Any]) -> None:
    """Wait until the thread has ended, also if the caller is cancelled again. Ignores the result."""
    while not result.done():
        try:
            await asyncio.wait([result])
        except asyncio.CancelledError:
            continue
    if not result.cancelled():
        result.exception()  # otherwise asyncio logs an exception that was never retrieved
