"""Pictures for the browser: bytes, sizes and thumbnails.

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

MAX_CACHED_BYTES = 96 << 20  # 15 pictures of 1920x1080
MIN_WIDTH, MAX_WIDTH = 32, 1280  # of a thumbnail
COMPACT_WIDTH = 960


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


def compact(picture: Picture, pixels: Callable[[], np.ndarray]) -> Picture:
    """The picture, scaled down to COMPACT_WIDTH pixels if it is wider. Decodes it only then."""
    with Image.open(io.BytesIO(picture.content)) as header:
        width, height = header.size
    if width <= COMPACT_WIDTH:
        return picture
    size = COMPACT_WIDTH, max(1, round(height * COMPACT_WIDTH / width))
    buffer = io.BytesIO()
    Image.fromarray(pixels()).resize(size).save(buffer, "WEBP", quality=80)
    return Picture(content=buffer.getvalue(), media_type="image/webp")
