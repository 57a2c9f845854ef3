"""The learner's thread: the event loop goes on, and errors, cancellation and Ctrl-C arrive."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from arpo.interrupts import run_interruptibly
from arpo.learner.background import in_background

SECONDS = 30  # timeout of waits that end at once


def test_the_event_loop_goes_on_and_the_result_arrives() -> None:
    """The work ends only if the loop runs a callback meanwhile."""
    called = threading.Event()

    async def work() -> str:
        assert threading.current_thread() is not threading.main_thread()
        assert called.wait(SECONDS), "the event loop is blocked"
        return "metrics"

    async def main() -> str:
        asyncio.get_running_loop().call_later(0, called.set)
        return await in_background(work())

    assert asyncio.run(main()) == "metrics"


def test_an_exception_of_the_learner_arrives() -> None:
    async def work() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        asyncio.run(in_background(work()))


def test_a_cancelled_caller_waits_for_the_thread() -> None:
    """Cancelled twice: both times before the work ends."""
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    async def work() -> None:
        began.set()
        assert may_end.wait(SECONDS)
        ended.set()
        raise RuntimeError("nobody reads this")

    async def main() -> None:
        task = asyncio.create_task(in_background(work()))
        assert await asyncio.to_thread(began.wait, SECONDS)
        for _ in range(2):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(main())


def test_ctrl_c_waits_for_the_thread() -> None:
    """The second Ctrl-C cancels the run: the update ends first."""
    stopped, ended = threading.Event(), threading.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(SECONDS)
        os.kill(os.getpid(), signal.SIGINT)
        assert cancelled.wait(SECONDS)
        ended.set()

    cancelled = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(in_background(work()), stop=stopped.set, on_cancel=cancelled.set)
    assert ended.is_set()
