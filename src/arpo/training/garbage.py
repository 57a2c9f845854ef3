"""Garbage collection during a run, in short pieces.

The event loop waits for a collection. A full one looks at all objects of the process: those of torch and
transformers alone take 0.2 s. A collection of young objects looks at every token of every new prompt and
sample. Python collects after a number of new objects, however large they are, and one collection took up to
0.6 s with 1,024 environments. So they are collected by time: few are new after 50 ms. A full collection skips
the objects of before the run. It frees closed environments: their windows and buttons refer to each other.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count

_SECONDS = 0.05  # between two collections of young objects
_YOUNG = 10  # such collections per collection of older objects
_FULL = 600  # such collections per full one
_NEW_OBJECTS = 10_000  # Python also collects after this many: the learner may block the event loop
_BEFORE_FULL = 1_000  # collections of middle-aged objects between two full ones, at least


@asynccontextmanager
async def short_collections() -> AsyncIterator[None]:
    """During the block, collections are short."""
    with rare_collections():
        collecting = asyncio.create_task(_collect())
        try:
            yield
        finally:
            collecting.cancel()


@contextmanager
def rare_collections() -> Iterator[None]:
    """During the block, Python collects rarely, and skips the objects of before."""
    default = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, default[1], _BEFORE_FULL)
    try:
        yield
    finally:
        gc.set_threshold(*default)
        gc.unfreeze()


async def _collect() -> None:
    for number in count(1):
        await asyncio.sleep(_SECONDS)
        gc.collect(0 if number % _YOUNG else 1 if number % _FULL else 2)
