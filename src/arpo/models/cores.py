"""Uses the cores of a CPU for a small model: its operations are too short for several threads.

Each core runs calls of its own, with one thread per operation: results do not depend on the number of cores.
"""

from __future__ import annotations

import platform
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn

SMALL_PARAMETERS = 2**27  # operations of larger models keep several threads busy
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


def is_small(model: nn.Module) -> bool:
    """Whether each core should run calls of its own. Each call has activations, and its copy has a cache."""
    return sum(parameter.numel() for parameter in model.parameters()) <= SMALL_PARAMETERS


def map_over_cores(function: Callable[..., _T], *arguments: Iterable[Any]) -> Generator[_T, None, None]:
    """The results of `map`, in order. Each core runs one call at a time, in a thread.

    At most two calls per core are ahead of the caller: results may be large. If the caller stops early, this
    waits for the calls that run.
    """
    with one_thread_per_operation() as cores:
        if cores == 1:
            yield from map(function, *arguments)
            return
        ahead: deque[Future[_T]] = deque()
        try:
            for one in zip(*arguments, strict=False):
                if len(ahead) == 2 * cores:
                    yield ahead.popleft().result()
                ahead.append(_threads(cores).submit(function, *one))
            while ahead:
                yield ahead.popleft().result()
        finally:
            wait([call for call in ahead if not call.cancel()])


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
