"""Encodes the pictures of the screenshot pack as lossless WebP: a whole picture, or its change from another.

A change is the rectangle around the changed pixels, with unchanged pixels transparent. It begins with the
position of the rectangle.

WebP's method 1: method 2 takes 15 to 30% longer for 1% to 3% fewer bytes, and method 0 compresses no better
than PNG. See docs/performance.md.
"""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image, ImageChops, WebPImagePlugin

from arpo.png import has_rgb_pixels, read_size
from arpo.types import MAX_SCREEN_PIXELS

MIN_ENCODED_BYTES = 1 << 15  # a smaller PNG is stored unchanged: WebP would save little space
_WEBP = WebPImagePlugin.WebPImageFile.format  # imported: otherwise PIL loads all its formats to find it
_POSITION = struct.Struct("<HH")  # left, top


def is_encoded(png: bytes) -> bool:
    """Whether the pack tries to encode the picture. Only RGB pixels are the whole content of their PNG."""
    return len(png) >= MIN_ENCODED_BYTES and has_rgb_pixels(png)


def has_change(png: bytes, base: bytes) -> bool:
    """Whether a picture can be stored as its change from `base`: both have RGB pixels and the same size."""
    return has_rgb_pixels(base) and read_size(base) == read_size(png)


def encode(image: Image.Image, base: Image.Image | None) -> bytes:
    """Encode the whole picture, or its change from `base`. The bytes depend on the pixels alone."""
    if base is None:
        return _webp(image)
    box = ImageChops.difference(image, base).getbbox() or (0, 0, 1, 1)
    pixels, before = np.asarray(image.crop(box)), np.asarray(base.crop(box))
    differs = pixels != before
    changed = differs[..., 0] | differs[..., 1] | differs[..., 2]  # several times faster than any(axis=2)
    patch = np.zeros((*changed.shape, 4), np.uint8)
    np.copyto(patch[..., :3], pixels, where=changed[..., None])
    patch[..., 3] = np.where(changed, 255, 0)
    return _POSITION.pack(*box[:2]) + _webp(Image.fromarray(patch))


def picture_size(payload: bytes) -> tuple[int, int]:
    """(width, height) of an encoded whole picture or of a PNG, from its header."""
    return _open(payload).size


def decode_whole(payload: bytes) -> np.ndarray:
    """RGB pixels of an encoded picture or of a PNG."""
    return np.asarray(_open(payload).convert("RGB"))


def apply_change(payload: bytes, base: np.ndarray) -> np.ndarray:
    """RGB pixels of the picture whose change from `base` is encoded."""
    if len(payload) < _POSITION.size:
        raise ValueError("no position")
    left, top = _POSITION.unpack_from(payload)
    return _covered(base, payload[_POSITION.size :], left, top)


def apply_patch(payload: bytes, base: np.ndarray) -> np.ndarray:
    """The same for a change of the whole screen, without a position, as in packs of earlier versions."""
    return _covered(base, payload, 0, 0)


def encode_png(pixels: np.ndarray) -> bytes:
    """A PNG of RGB pixels, made for speed."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _covered(base: np.ndarray, webp: bytes, left: int, top: int) -> np.ndarray:
    patch = np.asarray(_open(webp).convert("RGBA"))
    pixels = base.copy()
    region = pixels[top : top + patch.shape[0], left : left + patch.shape[1]]
    if region.shape[:2] != patch.shape[:2]:
        raise ValueError("the change is outside of the picture")
    np.copyto(region, patch[..., :3], where=patch[..., 3:] > 0)
    return pixels


def _open(payload: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(payload), formats=(_WEBP, "PNG"))  # other formats may start programs
    if image.width * image.height > MAX_SCREEN_PIXELS:
        raise ValueError(f"{image.width}x{image.height} pixels")
    return image


def _webp(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, _WEBP, lossless=True, method=1, quality=20)
    return buffer.getvalue()
