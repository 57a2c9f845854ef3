"""Pictures of one screen as PNG, by the standard library alone, and fast.

The picture is packed in bands of rows, each on its own, and only bands that have changed since the last one
are packed again: a step changes few. Rows are not filtered, which takes half the time and makes screens
hardly larger.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

BAND_ROWS = 60
_ADLER = 65521
_START, _END = b"\x78\x01", b"\x03\x00"  # of a zlib stream: its header, and an empty last block


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band:
    checksum: int  # of the screen's pixels
    packed: bytes
    adler: int  # of the unpacked lines
    length: int


class PngEncoder:
    """Takes a screen's pixels, four bytes each: blue, green, red, nothing."""

    def __init__(self, width: int, height: int) -> None:
        self._width = width
        self._height = height
        self._bands: list[_Band] = []
        self._picture = b""

    def encode(self, pixels: bytes) -> bytes:
        """The same bytes as the last time where nothing has changed."""
        size = self._width * 4 * BAND_ROWS
        view = memoryview(pixels)
        parts = [view[start : start + size] for start in range(0, len(pixels), size)]
        known: list[_Band | None] = [*self._bands] or [None] * len(parts)
        bands = [self._band(part, band) for part, band in zip(parts, known, strict=True)]
        if any(fresh is not band for fresh, band in zip(bands, known, strict=True)):
            self._bands, self._picture = bands, self._file(bands)
        return self._picture

    def _band(self, part: memoryview, known: _Band | None) -> _Band:
        checksum = zlib.crc32(part)
        if known and known.checksum == checksum:
            return known
        pixels = bytes(part)
        colors = bytearray(len(pixels) // 4 * 3)
        for channel in range(3):
            colors[channel::3] = pixels[2 - channel :: 4]
        row = self._width * 3
        lines = b"".join(b"\0" + colors[start : start + row] for start in range(0, len(colors), row))
        packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress(lines) + packer.flush(zlib.Z_FULL_FLUSH)
        return _Band(checksum=checksum, packed=packed, adler=zlib.adler32(lines), length=len(lines))

    def _file(self, bands: list[_Band]) -> bytes:
        header = struct.pack(">IIBBBBB", self._width, self._height, 8, 2, 0, 0, 0)
        packed = _START + b"".join(band.packed for band in bands) + _END + struct.pack(">I", _adler(bands))
        chunks = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _adler(bands: list[_Band]) -> int:
    """The checksum of all lines, from those of the bands: low = 1 + Σ bytes, high = Σ low after each byte."""
    low, high = 1, 0
    for band in bands:
        high = (high + (band.adler >> 16) + (low - 1) * band.length) % _ADLER
        low = (low + (band.adler & 0xFFFF) - 1) % _ADLER
    return high << 16 | low


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
