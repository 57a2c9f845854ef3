"""Garbage collection during a run.

A full collection looks at all objects of the process, and the event loop waits. The objects of torch and
transformers alone take 0.2 s.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loaded_objects_uncollected() -> Iterator[None]:
    """During the block, collections skip the objects that exist at its beginning."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
