"""Ctrl-C while an event loop runs: first stop in order, at last exit at once.

With a `stop` function, the first Ctrl-C calls it, the second cancels the work, the third exits. Without one,
the first Ctrl-C cancels and the second exits. To cancel calls `on_cancel`, closes all environments and then
raises KeyboardInterrupt. To exit ends the process without cleanup: all files stay valid, as after a kill.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, NoReturn, TypeVar

INTERRUPTED = 130  # exit code: 128 + SIGINT, as a shell reports it
_SHOW_CURSOR = b"\x1b[?25h"
_T = TypeVar("_T")


def run_interruptibly(
    main: Coroutine[Any, Any, _T],
    stop: Callable[[], None] | None = None,
    on_cancel: Callable[[], None] = lambda: None,
) -> _T:
    """Like asyncio.run, with Ctrl-C and SIGTERM as above.

    If an event loop is running in this thread, as in Jupyter, the work gets a loop in another thread. This
    thread waits for it and receives the signals.

    It also continues after a SystemExit of a task or a callback that an environment has created. asyncio
    would end the loop; here the exception reaches the code that awaits the task.
    """
    interrupted = False

    def cancel() -> None:
        nonlocal interrupted
        interrupted = True
        on_cancel()
        loop.set_exception_handler(lambda *_: None)  # cancelled work needs no tracebacks
        loop.call_soon_threadsafe(task.cancel)

    def handle(signum: int, frame: Any) -> None:
        next(steps, exit_at_once)()

    def work() -> _T:
        with closing(runner):
            while True:
                try:
                    return loop.run_until_complete(task)
                except BaseException as error:
                    if isinstance(error, SystemExit) and not task.done():
                        continue
                    if interrupted:
                        cancelled = isinstance(error, asyncio.CancelledError)
                        raise KeyboardInterrupt from None if cancelled else error
                    raise

    steps = iter([stop, cancel] if stop else [cancel])
    runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
    loop = runner.get_loop()
    task = loop.create_task(main)
    with _handling(handle) as (reader, writer):
        if asyncio._get_running_loop() is None:
            loop.add_reader(reader, reader.recv, 4096)
            return work()
        with ThreadPoolExecutor(1) as threads:
            result = threads.submit(work)
            result.add_done_callback(lambda _: writer.send(b"done"))
            while not result.done():
                select.select([reader], [], [])
                reader.recv(4096)
            return result.result()


def exit_at_once() -> NoReturn:
    """End the process. For signal handlers: it takes no locks and runs no other code."""
    if os.isatty(1):
        os.write(1, _SHOW_CURSOR)
    os.write(2, b"arpo: stopped at once; run the same command again\n")
    os._exit(INTERRUPTED)


@contextmanager
def _handling(handle: Callable[[int, Any], None]) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Call `handle` at each Ctrl-C or SIGTERM. Only the main thread receives signals.

    Each signal also writes to the socket that is yielded last, so that who waits for the first one wakes.
    Otherwise a signal would be handled only after the next event if it arrives just before the wait begins,
    or if the system delivers it to another thread.
    """
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        if threading.current_thread() is not threading.main_thread():
            yield reader, writer
            return
        wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield reader, writer
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
