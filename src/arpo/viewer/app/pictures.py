"""Pictures for the browser: bytes, sizes, thumbnails, and the changed regions between two screenshots.

Sizes are checked before pixels are decoded, so a decompression bomb is refused by its header. One picture is
decoded at a time, and the newest ones stay in memory: the next screenshot of an episode is one small change.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from arpo.errors import UserError
from arpo.png import decode, read_size
from arpo.types import screen_fault

MAX_PICTURE_BYTES = 64 << 20
MAX_CACHED_BYTES = 96 << 20  # 15 pictures of 1920x1080
MIN_WIDTH, MAX_WIDTH = 32, 1280  # of a thumbnail
CELL = 16  # pixels: side of the cells of `changed_regions`


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An encoded picture and its media type, for example image/png."""

    content: bytes
    media_type: str


class PixelCache:
    """The newest decoded pictures, by name, at most MAX_CACHED_BYTES. One thread decodes at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()

    def get(self, name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        with self._lock:
            if name not in self._kept:
                self._kept[name] = make()
            self._kept.move_to_end(name)
            while (
                sum(pixels.nbytes for pixels in self._kept.values()) > MAX_CACHED_BYTES
                and len(self._kept) > 1
            ):
                self._kept.popitem(last=False)
            return self._kept[name]


def checked_png(content: bytes) -> tuple[int, int]:
    """The size of a PNG. Raises UserError if it is none, or beyond the limits of a screen."""
    width, height = read_size(content)
    return checked_size(width, height)


def checked_size(width: int, height: int) -> tuple[int, int]:
    if fault := screen_fault(width, height):
        raise UserError(f"the screenshot is {width}x{height}, {fault}")
    return width, height


def png_pixels(content: bytes) -> np.ndarray:
    return np.asarray(decode(content))


def thumbnail(pixels: np.ndarray, width: int) -> Picture:
    """A JPEG of this width, or of the own width if that is smaller."""
    height, own = pixels.shape[:2]
    width = min(max(width, MIN_WIDTH), MAX_WIDTH, own)
    small = Image.fromarray(pixels).resize((width, max(1, round(height * width / own))), Image.Resampling.BOX)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=85)
    return Picture(content=buffer.getvalue(), media_type="image/jpeg")


def changed_regions(before: np.ndarray, after: np.ndarray) -> tuple[list[list[int]], float] | None:
    """Boxes [left, top, right, bottom] around the changed regions, and the share of changed pixels.

    Regions are connected cells of CELL pixels, the largest box first. None for pictures of different sizes.
    """
    if before.shape != after.shape:
        return None
    changed = (before != after).any(axis=2)
    height, width = changed.shape
    rows, columns = -(-height // CELL), -(-width // CELL)
    padded = np.zeros((rows * CELL, columns * CELL), bool)
    padded[:height, :width] = changed
    cells = np.asarray(padded.reshape(rows, CELL, columns, CELL).any(axis=(1, 3)))
    boxes = [
        [left * CELL, top * CELL, min(width, (right + 1) * CELL), min(height, (bottom + 1) * CELL)]
        for left, top, right, bottom in _components(cells)
    ]
    boxes.sort(key=lambda box: -(box[2] - box[0]) * (box[3] - box[1]))
    return boxes, float(changed.mean())


def _components(cells: np.ndarray) -> list[tuple[int, int, int, int]]:
    """Bounding boxes (left, top, right, bottom) of the connected true cells, corners included."""
    left_over = {(int(row), int(column)) for row, column in np.argwhere(cells)}
    found = []
    while left_over:
        stack = [left_over.pop()]
        rows, columns = set[int](), set[int]()
        while stack:
            row, column = stack.pop()
            rows.add(row)
            columns.add(column)
            near = [(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
            reached = [cell for cell in near if cell in left_over]
            left_over.difference_update(reached)
            stack += reached
        found.append((min(columns), min(rows), max(columns), max(rows)))
    return found
