"""Runs a function in a copy of this process, with all that is in memory here: nothing is loaded or sent.

    with Fork(lambda send: send(heavy_work())) as fork:
        messages = [message async for message in fork.messages()]

The copy has only the thread that called. Do not use locks or threads of others in it. Messages are bytes.
The copy ignores Ctrl-C, and ends with the block or with this process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from multiprocessing.connection import Connection

from arpo.processes.child import describe_exit, end_with_parent

Send = Callable[[bytes], None]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Fork:
    """A running copy. If the function raises an exception, its traceback goes to stderr."""

    def __init__(self, work: Callable[[Send], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._threads: list[threading.Thread] = []
        self._receiver, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(work, sender), daemon=True)
        # A signal that arrives before `_run` would call the handlers of this process in the copy.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of other threads here
                self._process.start()
        except BaseException:
            self._receiver.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            sender.close()

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        for thread in self._threads:
            thread.join()
        self._receiver.close()

    async def messages(self, silence: float | None = None) -> AsyncIterator[bytes]:
        """What the function sends, until it returns, or until the copy ends in another way.

        A copy that sends nothing for `silence` seconds is killed.
        """
        loop, received = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()

        def receive() -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(received.put_nowait, self._receiver.recv_bytes())
            except (EOFError, OSError):
                loop.call_soon_threadsafe(received.put_nowait, None)

        self._threads.append(threading.Thread(target=receive, daemon=True))
        self._threads[-1].start()
        while True:
            try:
                async with asyncio.timeout(silence):
                    message = await received.get()
            except TimeoutError:
                self._process.kill()
                silence = None
                continue
            if message is None:
                return
            yield message

    def exit_reason(self) -> str:
        """How the copy ended: "exit code 1". Call it after the last message."""
        self._process.join()
        return describe_exit(self._process.exitcode or 0)


def _run(work: Callable[[Send], None], sender: Connection) -> None:
    end_with_parent()
    signal.set_wakeup_fd(-1)  # of the event loop of this process's parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    work(sender.send_bytes)
