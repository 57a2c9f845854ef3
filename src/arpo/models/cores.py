"""Uses the cores of a CPU for a small model: its operations are too short for several threads.

Each core runs calls of its own, with one thread per operation: results do not depend on the number of cores.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch

_T = TypeVar("_T")
_LOCK = threading.RLock()
_thread = threading.local()


def use_cores(count: int) -> None:
    """torch uses so many threads for each operation; on ARM, without oneDNN.

    oneDNN's library for ARM keeps the number of threads of its first call: a fork of this process would wait
    for threads that it does not have. Desk's model is also 14% faster without it (two Neoverse N1 cores).
    """
    torch.set_num_threads(count)
    if platform.machine() in ("aarch64", "arm64"):
        torch.backends.mkldnn.set_flags(False)


def map_over_cores(function: Callable[..., _T], *arguments: Iterable[Any]) -> list[_T]:
    """The results of `map`. Each core runs one call at a time, in a thread."""
    with one_thread_per_operation() as cores:
        return list(map(function, *arguments) if cores == 1 else _threads(cores).map(function, *arguments))


@contextmanager
def one_thread_per_operation() -> Iterator[int]:
    """torch uses one thread for each operation in the block. Yields the number of threads before.

    This holds for the whole process, so its threads enter the block one after the other. It is 1 in the
    block, also in the threads of `map_over_cores`.
    """
    if hasattr(_thread, "of_a_core"):
        yield 1
        return
    with _LOCK:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield threads
        finally:
            torch.set_num_threads(threads)


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "core", initializer=_begin_thread)


def _begin_thread() -> None:
    _thread.of_a_core = True
    torch.set_num_threads(1)
