"""Ctrl-C reaches what the tests start, no test is timed, and every test begins with one torch thread."""

import gc
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("short", deadline=None, max_examples=40)  # a busy machine may pause any test
settings.load_profile("short")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell without job control leaves it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def use_one_torch_thread() -> None:
    """A run with default settings uses one thread per core, and the process keeps this number.

    On busy cores, small operations on several threads take ten times as long.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collected tests and imported packages stay until the end: garbage collections would only visit them."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    use_one_torch_thread()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    use_one_torch_thread()
