"""What Desk draws on: a grid of character cells, painted in palette colours at any pixel size.

The layout is 32 by 12 cells of 7 by 14 units (224 by 168); a canvas of another size scales each edge. Small
canvases use Pillow's fixed bitmap font, so a screen is the same to the pixel on every machine; large ones use
its outline font, without anti-aliasing. Nothing here knows windows or widgets.
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
_OUTLINE_FONT_FROM = 24  # pixels of cell height


class Colour(IntEnum):
    """The palette; the value is the pixel in an indexed image."""

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
    """An indexed picture. All measures are in units (224 by 168 for the whole screen)."""

    def __init__(self, width: int, height: int) -> None:
        self.pixels: NDArray[np.uint8] = np.full((height, width), Colour.WALLPAPER, dtype=np.uint8)
        self._across = _ratio(width, LAYOUT_WIDTH)
        self._down = _ratio(height, LAYOUT_HEIGHT)

    def area(self, x: float, y: float, width: float, height: float) -> tuple[slice, slice]:
        """Where the pixels of a rectangle are: rows, columns."""
        return (
            slice(round(y * self._down), round((y + height) * self._down)),
            slice(round(x * self._across), round((x + width) * self._across)),
        )

    def fill(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        self.pixels[self.area(x, y, width, height)] = colour

    def box(self, x: float, y: float, width: float, height: float, face: Colour, edge: Colour) -> None:
        self.fill(x, y, width, height, edge)
        self.fill(x + 1, y + 1, width - 2, height - 2, face)

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        left, right = round((x - radius) * self._across), round((x + radius) * self._across)
        top, bottom = round((y - radius) * self._down), round((y + radius) * self._down)
        inside = _disc(bottom - top, right - left)
        self.pixels[top:bottom, left:right][inside] = colour

    def text(self, x: float, y: float, text: str, colour: Colour) -> None:
        """Write from the cell whose corner is (x, y), one character a cell; what leaves the screen is cut."""
        ink = _ink(text, CELL_WIDTH * self._across, CELL_HEIGHT * self._down)
        left, top = round(x * self._across), round(y * self._down)
        area = self.pixels[top : top + ink.shape[0], left : left + ink.shape[1]]
        area[ink if ink.shape == area.shape else ink[: area.shape[0], : area.shape[1]]] = colour

    def png(self) -> bytes:
        """The picture as a file: palette, no filters, the fastest compression."""
        height, width = self.pixels.shape
        rows = np.zeros((height, 1 + width), dtype=np.uint8)  # a row begins with its filter: 0, none
        rows[:, 1:] = self.pixels
        header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # 8 bits, indexed
        content = _chunk(b"IDAT", zlib.compress(rows.tobytes(), 1))
        return b"".join((_SIGNATURE, _chunk(b"IHDR", header), _PLTE, content, _IEND))


def _ratio(pixels: int, units: int) -> float:
    """Pixels a unit: an integer where it is one, because rounding integers costs next to nothing."""
    return pixels // units if pixels % units == 0 else pixels / units


def _chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PLTE = _chunk(b"PLTE", PALETTE.tobytes())
_IEND = _chunk(b"IEND", b"")


@lru_cache(maxsize=256)
def _disc(height: int, width: int) -> NDArray[np.bool_]:
    y = (np.arange(height) + 0.5) / height * 2 - 1
    x = (np.arange(width) + 0.5) / width * 2 - 1
    return np.asarray(y[:, None] ** 2 + x[None, :] ** 2 <= 1.0)


@lru_cache(maxsize=4096)
def _ink(text: str, cell_width: float, cell_height: float) -> NDArray[np.bool_]:
    """The pixels that `text` inks, a cell a character."""
    picture = Image.new("1", (max(1, round(len(text) * cell_width)), max(1, round(cell_height))))
    draw = ImageDraw.Draw(picture)
    font = _font(cell_height)
    top = (cell_height - 11) / 2 if isinstance(font, ImageFont.ImageFont) else cell_height / 2
    for i, character in enumerate(text.encode("latin-1", "replace").decode("latin-1")):
        if isinstance(font, ImageFont.ImageFont):
            draw.text((round(i * cell_width) + 1, round(top)), character, font=font, fill=1)
        else:
            draw.text((round((i + 0.5) * cell_width), round(top)), character, font=font, fill=1, anchor="mm")
    return np.array(picture, dtype=np.bool_)


@lru_cache(maxsize=32)
def _font(cell_height: float) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    if cell_height < _OUTLINE_FONT_FROM:
        return ImageFont.load_default_imagefont()
    font = ImageFont.load_default(size=cell_height * 0.72)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font
