"""Garbage collection during a run.

The event loop waits for a collection. A full one looks at all objects of the process: those of torch and
transformers alone take 0.2 s. A collection of young objects looks at every token of every new prompt:
with 1,024 environments and Python's default, one per 700 objects, this took up to 0.6 s at once.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS = 10_000  # between two collections


@contextmanager
def rare_collections() -> Iterator[None]:
    """During the block, collections are rarer, and skip the objects that exist at its beginning."""
    default = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *default[1:])
    try:
        yield
    finally:
        gc.set_threshold(*default)
        gc.unfreeze()
