"""Decode screenshots in threads ahead of use, while the GPU works on earlier ones.

`load` also decodes screenshots without a prefetch. Each result is returned once and not cached.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from arpo.prompts import vision
from arpo.prompts.vision import ImageSettings
from arpo.types import Screenshot

_THREADS = min(16, os.cpu_count() or 1)  # decoding releases the GIL


class ImageLoader:
    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="image-loader")
        self._pending: dict[str, Future[NDArray[np.uint8]]] = {}

    def prefetch(self, screenshots: Iterable[Screenshot]) -> None:
        for shot in screenshots:
            if shot.sha256 not in self._pending:
                self._pending[shot.sha256] = self._threads.submit(vision.pixels, shot, self._settings)

    def load(self, screenshots: Iterable[Screenshot]) -> list[NDArray[np.uint8]]:
        """Pixels of the screenshots, resized for the model."""
        wanted = list(screenshots)
        self.prefetch(wanted)
        return [self._pending.pop(shot.sha256).result() for shot in wanted]

    def is_ready(self, screenshots: Iterable[Screenshot]) -> bool:
        """Whether no thread is still decoding one of these screenshots."""
        return all(
            shot.sha256 not in self._pending or self._pending[shot.sha256].done() for shot in screenshots
        )

    async def wait_for_any(self) -> None:
        """Wait until a thread has decoded another screenshot. Returns at once if none is being decoded."""
        loop, decoded = asyncio.get_running_loop(), asyncio.Event()

        def wake(_: Future[NDArray[np.uint8]]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(decoded.set)

        undecoded = [future for future in self._pending.values() if not future.done()]
        for future in undecoded:
            future.add_done_callback(wake)
        if undecoded:
            await decoded.wait()

    def clear(self) -> None:
        """Forget prefetched screenshots."""
        for future in self._pending.values():
            future.cancel()
        self._pending.clear()
