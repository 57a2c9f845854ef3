"""PNGs built chunk by chunk, healthy and damaged. Every checksum is right unless a test breaks it."""

from __future__ import annotations

import struct
import zlib
from functools import cache

from arpo.png import SIGNATURE
from arpo.testing import screenshot

IEND = b"\0\0\0\0IEND\xaeB`\x82"


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def header(width: int, height: int, depth: int = 8, colour: int = 0, interlaced: int = 0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))


def grey(width: int, height: int) -> bytes:
    """The rows of a black image: a filter type, then one byte per pixel."""
    return bytes((1 + width) * height)


def png(*chunks: bytes) -> bytes:
    return b"".join((SIGNATURE, *chunks, IEND))


def corrupt(whole: bytes) -> bytes:
    """The same container with a compressed stream that is not one: its checksum is right."""
    start = whole.index(b"IDAT")
    (length,) = struct.unpack(">I", whole[start - 4 : start])
    stream = bytearray(whole[start + 4 : start + 4 + length])
    stream[2:-4] = bytes(byte ^ 0xFF for byte in stream[2:-4])
    return whole[: start - 4] + chunk(b"IDAT", bytes(stream)) + whole[start + 8 + length :]


def cut_short(whole: bytes) -> bytes:
    """The same container with the first half of the compressed stream."""
    start = whole.index(b"IDAT")
    (length,) = struct.unpack(">I", whole[start - 4 : start])
    half = whole[start + 4 : start + 4 + length // 2]
    return whole[: start - 4] + chunk(b"IDAT", half) + whole[start + 8 + length :]


@cache
def bomb() -> bytes:
    """177 megapixels in a megabyte: one compressed row, repeated within a zlib stream."""
    row, packer, checksum = grey(13_300, 1), zlib.compressobj(), 1
    first, again = (packer.compress(row) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    for _ in range(13_300):
        checksum = zlib.adler32(row, checksum)
    stream = first + again * 13_299 + b"\x03\x00" + struct.pack(">I", checksum)
    return png(header(13_300, 13_300), chunk(b"IDAT", stream))


def plain(width: int = 56, height: int = 56) -> bytes:
    return screenshot(7, (width, height)).png
