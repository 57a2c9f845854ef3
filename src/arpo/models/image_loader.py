"""Screenshots unpacked ahead of their use, by threads, while the GPU is at work on those before.

A picture that was not expected is unpacked when it is asked for. Each is handed out once: nothing is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from arpo.prompts import vision
from arpo.prompts.vision import ImageSettings
from arpo.types import Screenshot

_THREADS = min(16, os.cpu_count() or 1)  # unpacking leaves the interpreter free


class Pictures:
    def __init__(self, settings: ImageSettings) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pictures")
        self._coming: dict[str, Future[NDArray[np.uint8]]] = {}

    def expect(self, screenshots: Iterable[Screenshot]) -> None:
        for shot in screenshots:
            if shot.sha256 not in self._coming:
                self._coming[shot.sha256] = self._threads.submit(vision.pixels, shot, self._settings)

    def take(self, screenshots: Iterable[Screenshot]) -> list[NDArray[np.uint8]]:
        """Pixels of these, at the size that the model sees."""
        wanted = list(screenshots)
        self.expect(wanted)
        return [self._coming.pop(shot.sha256).result() for shot in wanted]
