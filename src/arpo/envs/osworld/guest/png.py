"""A fast PNG encoder for screenshots of one screen, without dependencies.

The encoder compresses bands of rows independently, and only bands that have changed since the last
screenshot: one step changes few. It applies no PNG row filter, which halves the time and makes files only
slightly larger.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

BAND_ROWS = 60
_ADLER_MODULUS = 65521
_ZLIB_HEADER, _ZLIB_LAST_BLOCK = b"\x78\x01", b"\x03\x00"  # the last block is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    checksum: int  # of the pixels
    compressed: bytes
    adler: int  # of the uncompressed lines
    length: int  # of the uncompressed lines


class PngEncoder:
    """Encodes pixels of four bytes: blue, green, red, unused."""

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._bands: list[_Band] = []
        self._png = b""

    def encode(self, pixels: bytes) -> bytes:
        """Returns the same bytes object as the last call if nothing has changed."""
        size = self._width * 4 * BAND_ROWS
        view = memoryview(pixels)
        parts = [view[start : start + size] for start in range(0, len(pixels), size)]
        cached: list[_Band | None] = [*self._bands] or [None] * len(parts)
        bands = [self._band(part, band) for part, band in zip(parts, cached, strict=True)]
        if any(new is not old for new, old in zip(bands, cached, strict=True)):
            self._bands, self._png = bands, self._file(bands)
        return self._png

    def _band(self, part: memoryview, cached: _Band | None) -> _Band:
        checksum = zlib.crc32(part)
        if cached and cached.checksum == checksum:
            return cached
        pixels = bytes(part)
        colors = bytearray(len(pixels) // 4 * 3)
        for channel in range(3):
            colors[channel::3] = pixels[2 - channel :: 4]
        row = self._width * 3
        lines = b"".join(b"\0" + colors[start : start + row] for start in range(0, len(colors), row))
        compressor = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        compressed = compressor.compress(lines) + compressor.flush(zlib.Z_FULL_FLUSH)
        return _Band(checksum=checksum, compressed=compressed, adler=zlib.adler32(lines), length=len(lines))

    def _file(self, bands: list[_Band]) -> bytes:
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)
        blocks = b"".join(band.compressed for band in bands)
        stream = _ZLIB_HEADER + blocks + _ZLIB_LAST_BLOCK + struct.pack(">I", _adler(bands))
        chunks = ((b"IHDR", header), (b"IDAT", stream), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _adler(bands: list[_Band]) -> int:
    """Combines the bands' Adler-32 checksums: low = 1 + Σ bytes, high = Σ low after each byte."""
    low, high = 1, 0
    for band in bands:
        high = (high + (band.adler >> 16) + (low - 1) * band.length) % _ADLER_MODULUS
        low = (low + (band.adler & 0xFFFF) - 1) % _ADLER_MODULUS
    return high << 16 | low


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
