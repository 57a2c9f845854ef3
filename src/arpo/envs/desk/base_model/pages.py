"""Pages of words: a screen full of text in the fonts and colours of Desk, to learn to read any word anywhere.

On a desktop most text repeats: names of buttons and tabs. A page has about 25 random words of the vocabulary.
"""

from __future__ import annotations

import random

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
from arpo.envs.desk.words import vocabulary

PAGE_INSTRUCTION = "Read the text"
_NUMBERS = 0.15  # share of numbers among the words
_MAX_NUMBER = 120
_EMPTY_ROWS = 0.15
# (text, background) as in Desk: fields, lists, selected rows, buttons, titles, tabs, menus, the task bar.
_STYLES = (
    (Colour.INK, Colour.FIELD), (Colour.INK, Colour.FIELD), (Colour.INK, Colour.PAPER),
    (Colour.LIGHT, Colour.ACCENT), (Colour.INK, Colour.FACE), (Colour.LIGHT, Colour.TITLE),
    (Colour.LIGHT, Colour.TITLE_IDLE), (Colour.INK, Colour.DIM), (Colour.TITLE, Colour.LIGHT),
    (Colour.LIGHT, Colour.EDGE),
)  # fmt: skip


def random_page(rng: random.Random) -> tuple[NDArray[np.uint8], str]:
    """A screen, and its words with the centres of each, in reading order: "milk(28,7)Anna(98,7)"."""
    canvas = Canvas(LAYOUT_WIDTH, LAYOUT_HEIGHT)
    words = vocabulary()
    entries = []
    for row in range(ROWS):
        if rng.random() < _EMPTY_ROWS:
            continue
        ink, paper = rng.choice(_STYLES)
        canvas.fill(0, row * CELL_HEIGHT, LAYOUT_WIDTH, CELL_HEIGHT, paper)
        column = 2 * rng.randrange(6)
        while True:
            word = str(rng.randrange(_MAX_NUMBER)) if rng.random() < _NUMBERS else rng.choice(words)
            if column + len(word) > COLUMNS:
                break
            canvas.text(column * CELL_WIDTH, row * CELL_HEIGHT, word, ink)
            x = column * CELL_WIDTH + len(word) * CELL_WIDTH // 2
            entries.append(f"{word}({x},{row * CELL_HEIGHT + CELL_HEIGHT // 2})")
            column += len(word) + rng.randint(1, 6)
    return canvas.pixels, "".join(entries)
