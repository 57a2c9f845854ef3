"""Decodes screenshots within limits: the PNG may come from a hostile guest or host.

The header is checked first, so an oversized picture is refused before any memory is allocated for its pixels.
Then the checksum of every chunk is checked. Pillow receives only the chunks that hold the pixels: texts,
colour profiles and animations are never parsed.

`rgb` keeps the newest pictures in memory. The check of a new screenshot and the vision tower's preprocessing
thus share one decoding.
"""

from __future__ import annotations

import io
import os
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError

from arpo.errors import UserError
from arpo.types import Screenshot, screen_fault

SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_CACHED_BYTES = 256 << 20  # 32 pictures of 1920x1080, or 1,783 of 224x168
FREE_CHUNKS, BYTES_PER_CHUNK = 64, 1024  # a chunk per KiB of uncompressed rows; encoders write 4 KiB or more
MAX_METADATA_BYTES = 1 << 20
TRUECOLOUR = 2  # colour type of RGB pixels without alpha

_HEADER = struct.Struct(">8sI4sIIBB2xB")  # signature; length, name and fields of the chunk IHDR
_CHUNK = struct.Struct(">I4s")  # length of the content, name; content and checksum follow
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by colour type: grey, RGB, palette; with alpha: grey, RGB
_CACHED_BYTES_PER_PIXEL = 4  # Pillow pads RGB


class BadPng(UserError):
    """The picture is refused: BadPng("is 1x1, must have sides of 8 to 16,383 pixels")."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the screenshot {reason}")


def read_size(png: bytes) -> tuple[int, int]:
    """(width, height) from the header. Raises BadPng if it is not a PNG."""
    header = _Header.read(png)
    return header.width, header.height


def has_rgb_pixels(png: bytes) -> bool:
    """Whether the PNG itself stores RGB pixels, so that they are its whole content."""
    return _Header.read(png).colour == TRUECOLOUR


def rgb(screenshot: Screenshot) -> Image.Image:
    """The decoded screenshot, from the cache if possible. Callers share the image: do not change it."""
    image = _cache.get(screenshot.sha256)
    if image is None:
        image = decode(screenshot.png)
        _cache.put(screenshot.sha256, image)
    return image


def keep_pixels(screenshot: Screenshot, image: Image.Image) -> None:
    """Put the pixels of a screenshot into the cache of `rgb`, if its maker has them: saves the decoding."""
    _cache.put(screenshot.sha256, image)


def decode(png: bytes) -> Image.Image:
    """The picture as an RGB image. Raises BadPng if it is damaged or beyond the limits of a screen."""
    header = _Header.read(png)
    if fault := screen_fault(header.width, header.height):
        raise BadPng(f"is {header.width}x{header.height}, {fault}")
    if header.depth > 8:
        raise BadPng(f"has {header.depth} bits per channel, must have at most 8")
    if header.interlaced:
        raise BadPng("is an interlaced PNG, must not be interlaced")
    if len(png) > header.uncompressed_bytes * 9 // 8 + MAX_METADATA_BYTES:
        raise BadPng(f"has {len(png):,} bytes, too many for {header.width}x{header.height} pixels")
    chunks = _pixel_chunks(png, FREE_CHUNKS + header.uncompressed_bytes // BYTES_PER_CHUNK)
    try:
        with Image.open(io.BytesIO(b"".join((SIGNATURE, *chunks))), formats=("PNG",)) as image:
            image.load()
            # Pillow leaves missing rows empty. An empty last row may be genuine: count the bytes.
            last_row = image.crop((0, header.height - 1, header.width, header.height))
            complete = last_row.getbbox() is not None or _has_all_rows(chunks, header)
            decoded = image.convert("RGB")
    except UnidentifiedImageError as error:  # its text has a memory address in place of a reason
        raise BadPng("is a damaged PNG: its header or its pixels are invalid") from error
    except (OSError, SyntaxError, ValueError, zlib.error) as error:
        raise BadPng(f"is a damaged PNG: {error}") from error
    if not complete:
        raise BadPng("is a damaged PNG: rows are missing")
    return decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    width: int
    height: int
    depth: int  # bits per channel
    colour: int  # type
    interlaced: int

    @classmethod
    def read(cls, png: bytes) -> _Header:
        if len(png) >= _HEADER.size:
            signature, length, name, width, height, depth, colour, interlaced = _HEADER.unpack_from(png)
            if (signature, length, name) == (SIGNATURE, 13, b"IHDR") and colour in _CHANNELS:
                return cls(width=width, height=height, depth=depth, colour=colour, interlaced=interlaced)
        raise BadPng('is not a PNG: save the image with the format "PNG"')

    @property
    def uncompressed_bytes(self) -> int:
        """Of all rows; each begins with its filter type."""
        return self.height * (1 + (self.width * self.depth * _CHANNELS[self.colour] + 7) // 8)


def _pixel_chunks(png: bytes, limit: int) -> list[memoryview]:
    """The chunks that determine the pixels. Raises BadPng for a damaged structure or over `limit` chunks."""
    view, position = memoryview(png), len(SIGNATURE)
    names: list[bytes] = []
    kept: list[memoryview] = []
    while not names or names[-1] != b"IEND":
        length, name = _CHUNK.unpack_from(png, position) if len(png) >= position + 12 else (len(png), b"")
        end = position + 12 + length
        if end > len(png):
            raise BadPng("is a damaged PNG: its end is missing")
        if zlib.crc32(view[position + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            raise BadPng(f"is a damaged PNG: the chunk at byte {position} has a wrong checksum")
        if name == b"acTL":
            raise BadPng("is an animated PNG, must be a single picture")
        repeats = name in (b"IHDR", b"PLTE") or (name == b"IDAT" and names[-1] != name)
        if len(names) == limit or (repeats and name in names):
            raise BadPng(f"is a damaged PNG: the chunk at byte {position} is one too many")
        if name in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
            kept.append(view[position:end])
        names.append(name)
        position = end
    if position < len(png):
        raise BadPng(f"is a damaged PNG: {len(png) - position:,} bytes follow its end")
    return kept


def _has_all_rows(chunks: Sequence[memoryview], header: _Header) -> bool:
    stream = b"".join(chunk[8:-4] for chunk in chunks if chunk[4:8] == b"IDAT")
    rows = zlib.decompressobj().decompress(stream, header.uncompressed_bytes)
    return len(rows) == header.uncompressed_bytes


class _Cache:
    """Decoded pictures by sha256, of limited size; the least recently used ones are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._images: OrderedDict[str, Image.Image] = OrderedDict()
        self.renew_lock()

    def renew_lock(self) -> None:
        self._lock = threading.Lock()  # several threads decode

    def get(self, sha256: str) -> Image.Image | None:
        with self._lock:
            if sha256 in self._images:
                self._images.move_to_end(sha256)
            return self._images.get(sha256)

    def put(self, sha256: str, image: Image.Image) -> None:
        with self._lock:
            if sha256 not in self._images:
                self._bytes += _bytes(image)
            self._images[sha256] = image
            while self._bytes > self._limit:
                _, oldest = self._images.popitem(last=False)
                self._bytes -= _bytes(oldest)


def _bytes(image: Image.Image) -> int:
    return _CACHED_BYTES_PER_PIXEL * image.width * image.height


_cache = _Cache(MAX_CACHED_BYTES)
os.register_at_fork(after_in_child=_cache.renew_lock)  # a thread that does not exist there may hold it
