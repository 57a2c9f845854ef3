"""A viewer inside another command: `arpo train` on a terminal and `arpo play --watch` show its address."""

from __future__ import annotations

import asyncio
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from queue import SimpleQueue

from arpo.processes.bounded_log import bounded_log
from arpo.viewer.library import Library
from arpo.viewer.server import ViewServer


@contextmanager
def live_view(folder: Path, note: Callable[[str], None], at: str = "") -> Iterator[str]:
    """Serve a run from a thread during the block, and note its address. A fault costs only the view.

    Yields the address, "" after a fault. `at`: the first view, the part of the address after #.
    """
    opened: SimpleQueue[tuple[str, Callable[[], object]]] = SimpleQueue()

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        with closing(Library([folder])) as library:
            server = ViewServer(library, always_indexes=False)
            async with server.started(0):
                opened.put((server.url(at), lambda: loop.call_soon_threadsafe(ended.set)))
                await ended.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except Exception as error:
            opened.put(("", lambda: None))
            note(f"no live view: {error}. `arpo view {shlex.quote(str(folder))}` shows the run")

    thread = threading.Thread(target=run, name="live-view", daemon=True)
    thread.start()
    address, end = opened.get()
    if address:
        note(f"watch it: {address}")
    try:
        with bounded_log():
            yield address
    finally:
        end()
        thread.join()
