"""Decode screenshots in threads ahead of use, while the GPU works on earlier ones.

`load` also decodes screenshots without a prefetch. Each result is returned once and not cached.
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
