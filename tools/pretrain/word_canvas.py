"""A canvas that knows which word each of its cells shows, to train the vision tower to read."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from arpo.envs.desk.canvas import (
    CELL_HEIGHT,
    CELL_WIDTH,
    COLUMNS,
    LAYOUT_HEIGHT,
    LAYOUT_WIDTH,
    ROWS,
    Canvas,
    Colour,
)
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.words import vocabulary

NO_WORD = -1
NUMBERS = 120  # numbers below this are words too


@lru_cache(maxsize=1)
def readable_words() -> tuple[str, ...]:
    """All words of the vocabulary, and numbers."""
    return (*vocabulary(), *map(str, range(NUMBERS)))


class WordCanvas(Canvas):
    """`words_RC`: in each cell the index of its word in `readable_words`, or `NO_WORD`."""

    def __init__(self) -> None:
        super().__init__(LAYOUT_WIDTH, LAYOUT_HEIGHT)
        self.words_RC: NDArray[np.int16] = np.full((ROWS, COLUMNS), NO_WORD, dtype=np.int16)

    def fill(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        """Hides the words of all cells whose centre is in the rectangle."""
        super().fill(x, y, width, height, colour)
        rows = slice(round(y / CELL_HEIGHT), round((y + height) / CELL_HEIGHT))
        self.words_RC[rows, round(x / CELL_WIDTH) : round((x + width) / CELL_WIDTH)] = NO_WORD

    def text(self, x: float, y: float, text: str, colour: Colour) -> None:
        super().text(x, y, text, colour)
        row, column = round(y / CELL_HEIGHT), round(x / CELL_WIDTH)
        for start, end, index in _words_of(text):
            self.words_RC[row : row + 1, column + start : column + end] = index


def draw(desktop: Desktop) -> WordCanvas:
    canvas = WordCanvas()
    desktop.draw_on(canvas)
    return canvas


@lru_cache(maxsize=4096)
def _words_of(text: str) -> tuple[tuple[int, int, int], ...]:
    """(start, end, index) of all readable words and of the places of other text."""
    indices = _indices()
    found = re.finditer(r"[A-Za-z]+|[0-9]+|[^\sA-Za-z0-9]+", text)
    return tuple((*match.span(), indices.get(match[0], NO_WORD)) for match in found)


@lru_cache(maxsize=1)
def _indices() -> dict[str, int]:
    return {word: index for index, word in enumerate(readable_words())}
