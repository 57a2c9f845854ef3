"""A copy of this process sends what its function sends, and ends with the block."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from arpo.processes.fork import Fork, Send
from processes import wait_until


def received(fork: Fork, silence: float | None = None) -> list[bytes]:
    async def all_of_them() -> list[bytes]:
        return [message async for message in fork.messages(silence)]

    return asyncio.run(all_of_them())


def test_a_copy_has_the_memory_of_this_process_and_its_own_changes() -> None:
    words = [b"one", b"two"]

    def work(send: Send) -> None:
        words.append(b"three")
        for word in words:
            send(word)

    with Fork(work) as fork:
        assert received(fork) == [b"one", b"two", b"three"]
        assert fork.exit_reason() == "exit code 0"
    assert words == [b"one", b"two"]


def test_messages_end_when_a_copy_dies() -> None:
    def work(send: Send) -> None:
        send(b"first")
        os.kill(os.getpid(), signal.SIGKILL)

    with Fork(work) as fork:
        assert received(fork) == [b"first"]
        assert fork.exit_reason() == "killed by SIGKILL"


def test_a_copy_ignores_an_interrupt_and_ends_with_the_block() -> None:
    def work(send: Send) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        send(str(os.getpid()).encode())
        time.sleep(600)

    async def scenario() -> str:
        with Fork(work) as fork:
            async for process in fork.messages():
                return process.decode()
        raise AssertionError

    process = asyncio.run(scenario())
    assert wait_until(lambda: not Path("/proc", process).exists())


def test_an_interrupt_at_the_start_of_a_copy_reaches_no_handler_there() -> None:
    """The copy sends itself the signal before its function runs."""
    handled: list[int] = []

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    os.register_at_fork(after_in_child=lambda: interrupt() if armed else None)
    armed = True
    before = signal.signal(signal.SIGINT, lambda *_: handled.append(os.getpid()))
    try:
        with Fork(lambda send: send(str(handled).encode())) as fork:
            assert received(fork) == [b"[]"]
            assert fork.exit_reason() == "exit code 0"
        os.kill(os.getpid(), signal.SIGINT)
        assert handled == [os.getpid()]
    finally:
        armed = False
        signal.signal(signal.SIGINT, before)


def test_a_copy_that_sends_nothing_is_killed() -> None:
    def work(send: Send) -> None:
        send(b"first")
        time.sleep(600)

    with Fork(work) as fork:
        assert received(fork, silence=0.5) == [b"first"]
        assert fork.exit_reason() == "killed by SIGKILL"
