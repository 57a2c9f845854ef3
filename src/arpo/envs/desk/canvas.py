"""Canvas: a grid of character cells, painted in palette colours at any pixel size.

The layout has 32x12 cells of 7x14 units, 224x168 units in all. A canvas of another size scales every edge.
Small canvases use Pillow's bitmap font, so pixels are identical on every machine. Large ones use its outline
font, without anti-aliasing.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

COLUMNS, ROWS = 32, 12
CELL_WIDTH, CELL_HEIGHT = 7, 14
LAYOUT_WIDTH, LAYOUT_HEIGHT = COLUMNS * CELL_WIDTH, ROWS * CELL_HEIGHT
_OUTLINE_FONT_MIN_HEIGHT = 24  # pixels of cell height


class Colour(IntEnum):
    """The palette. A value is the pixel's index."""

    WALLPAPER = 0
    PAPER = 1
    INK = 2
    FACE = 3
    EDGE = 4
    TITLE = 5
    TITLE_IDLE = 6
    LIGHT = 7
    BAR = 8
    ACCENT = 9
    FIELD = 10
    DIM = 11
    FOLDER = 12
    DANGER = 13


_RGB = {
    Colour.WALLPAPER: (58, 110, 140),
    Colour.PAPER: (238, 238, 242),
    Colour.INK: (20, 20, 28),
    Colour.FACE: (205, 208, 216),
    Colour.EDGE: (96, 100, 112),
    Colour.TITLE: (32, 64, 160),
    Colour.TITLE_IDLE: (128, 134, 150),
    Colour.LIGHT: (255, 255, 255),
    Colour.BAR: (40, 44, 56),
    Colour.ACCENT: (60, 120, 220),
    Colour.FIELD: (255, 255, 255),
    Colour.DIM: (160, 164, 174),
    Colour.FOLDER: (226, 170, 50),
    Colour.DANGER: (200, 60, 60),
}
PALETTE: NDArray[np.uint8] = np.array([_RGB[colour] for colour in Colour], dtype=np.uint8)


class Canvas:
    """An indexed image. Methods take layout units: the screen is 224x168."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels: NDArray[np.uint8] = np.full((height, width), Colour.WALLPAPER, dtype=np.uint8)
        self._scale_x = _scale(width, LAYOUT_WIDTH)
        self._scale_y = _scale(height, LAYOUT_HEIGHT)

    def area(self, x: float, y: float, width: float, height: float) -> tuple[slice, slice]:
        """Slices (rows, columns) of a rectangle's pixels."""
        return (
            slice(round(y * self._scale_y), round((y + height) * self._scale_y)),
            slice(round(x * self._scale_x), round((x + width) * self._scale_x)),
        )

    def fill(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        self.pixels[self.area(x, y, width, height)] = colour

    def box(self, x: float, y: float, width: float, height: float, face: Colour, edge: Colour) -> None:
        self.fill(x, y, width, height, edge)
        self.fill(x + 1, y + 1, width - 2, height - 2, face)

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        left, right = round((x - radius) * self._scale_x), round((x + radius) * self._scale_x)
        top, bottom = round((y - radius) * self._scale_y), round((y + radius) * self._scale_y)
        inside = _disc_mask(bottom - top, right - left)
        self.pixels[top:bottom, left:right][inside] = colour

    def text(self, x: float, y: float, text: str, colour: Colour) -> None:
        """Write one character per cell, the first at (x, y). Text beyond the edge is clipped."""
        mask = _text_mask(text, CELL_WIDTH * self._scale_x, CELL_HEIGHT * self._scale_y)
        left, top = round(x * self._scale_x), round(y * self._scale_y)
        area = self.pixels[top : top + mask.shape[0], left : left + mask.shape[1]]
        area[mask if mask.shape == area.shape else mask[: area.shape[0], : area.shape[1]]] = colour

    def png(self) -> bytes:
        """PNG bytes: palette, no filters, fastest compression."""
        height, width = self.pixels.shape
        rows = np.zeros((height, 1 + width), dtype=np.uint8)  # each row begins with its filter type: 0, none
        rows[:, 1:] = self.pixels
        header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, indexed
        content = _chunk(b"IDAT", zlib.compress(rows.tobytes(), 1))
        return b"".join((_SIGNATURE, _chunk(b"IHDR", header), _PLTE, content, _IEND))


def _scale(pixels: int, units: int) -> float:
    """Pixels per unit: an int if possible, because rounding an int is faster."""
    return pixels // units if pixels % units == 0 else pixels / units


def _chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PLTE = _chunk(b"PLTE", PALETTE.tobytes())
_IEND = _chunk(b"IEND", b"")


@lru_cache(maxsize=256)
def _disc_mask(height: int, width: int) -> NDArray[np.bool_]:
    y = (np.arange(height) + 0.5) / height * 2 - 1
    x = (np.arange(width) + 0.5) / width * 2 - 1
    return np.asarray(y[:, None] ** 2 + x[None, :] ** 2 <= 1.0)


@lru_cache(maxsize=4096)
def _text_mask(text: str, cell_width: float, cell_height: float) -> NDArray[np.bool_]:
    """Pixels that `text` covers."""
    image = Image.new("1", (max(1, round(len(text) * cell_width)), max(1, round(cell_height))))
    draw = ImageDraw.Draw(image)
    font = _font(cell_height)
    top = (cell_height - 11) / 2 if isinstance(font, ImageFont.ImageFont) else cell_height / 2
    for i, character in enumerate(text.encode("latin-1", "replace").decode("latin-1")):
        if isinstance(font, ImageFont.ImageFont):
            draw.text((round(i * cell_width) + 1, round(top)), character, font=font, fill=1)
        else:
            draw.text((round((i + 0.5) * cell_width), round(top)), character, font=font, fill=1, anchor="mm")
    return np.array(image, dtype=np.bool_)


@lru_cache(maxsize=32)
def _font(cell_height: float) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    if cell_height < _OUTLINE_FONT_MIN_HEIGHT:
        return ImageFont.load_default_imagefont()
    font = ImageFont.load_default(size=cell_height * 0.72)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
