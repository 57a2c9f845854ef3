"""A semaphore for several event loops in turn."""

from __future__ import annotations

import asyncio


class Slots:
    """A semaphore for `async with slots():`. Unlike asyncio's, it also works after a change of event loop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop: asyncio.AbstractEventLoop | None = None
        self._semaphore = asyncio.Semaphore(count)

    def __call__(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._semaphore = loop, asyncio.Semaphore(self._count)
        return self._semaphore
