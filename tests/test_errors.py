"""`boundary` attributes every exception to its call, and lets a requested cancellation pass."""

from __future__ import annotations

import asyncio
import sys

import pytest

from arpo.errors import ArpoFault, EngineError, EnvError, EnvTimeout, boundary


async def _awaits_a_cancelled_task() -> None:
    helper = asyncio.ensure_future(asyncio.sleep(60))
    helper.cancel()
    await helper


async def _its_own_timeout() -> None:
    raise TimeoutError("the socket gave up")


async def _division() -> None:
    raise ZeroDivisionError("by zero")


async def _exits() -> None:
    sys.exit("no display")


class _OwnExit(BaseException):
    pass


async def _raises_its_own_exit() -> None:
    raise _OwnExit("stop")


async def _named_already() -> None:
    raise EngineError("generate", "out of memory")


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (_division, EnvError, "step: ZeroDivisionError: by zero"),
        (_exits, EnvError, "step: SystemExit: no display"),
        (_raises_its_own_exit, EnvError, "step: _OwnExit: stop"),
        (_named_already, EngineError, "generate: out of memory"),
        (_its_own_timeout, EnvError, "step: TimeoutError: the socket gave up"),
        (_awaits_a_cancelled_task, EnvError, "step: CancelledError: an awaited task was cancelled"),
        (asyncio.Event().wait, EnvTimeout, "step: no answer within 0.01 s"),
    ],
)
def test_an_exception_becomes_a_fault_of_the_call(call, kind, message):
    async def guarded() -> None:
        async with boundary(EnvError, "step", 0.01 if kind is EnvTimeout else 60):
            await call()

    with pytest.raises(ArpoFault) as caught:
        asyncio.run(guarded())
    assert (type(caught.value), str(caught.value)) == (kind, message)


def test_a_requested_cancellation_passes():
    async def guarded() -> None:
        async with boundary(EnvError, "step", 60):
            await asyncio.Event().wait()

    async def stop_it() -> None:
        task = asyncio.create_task(guarded())
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stop_it())


def test_ctrl_c_passes():
    async def guarded() -> None:
        async with boundary(EnvError, "step", 60):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(guarded())


def test_the_message_of_a_fault_is_safe_to_print_and_to_store() -> None:
    """It may come from a guest or from another machine."""
    fault = EnvError("st\x1bep", "a\x1b[2J\x07\r\tb\nc \ud800 é")
    assert fault.where == "st\ufffdep"
    assert fault.message == "a\ufffd[2J\ufffd\ufffd\tb\nc \ufffd é"
    assert str(fault) == f"{fault.where}: {fault.message}"
    assert str(fault).encode()
    assert len(EngineError("generate", "x" * 1_000_000).message) == 10_000
