"""Pages of words: a screen full of text in the fonts and colours of Desk, to learn to read any word anywhere.

On a desktop most text repeats: names of buttons and tabs. A page has about 25 random words of the vocabulary.
They train the vision tower word by word (`pretrain.ReadingHead`). Answers alone teach reading slowly: the
model then has to learn at once which word comes next, where it is, and how it looks.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from arpo.envs.desk.apps import APPS
from arpo.envs.desk.canvas import (
    CELL_HEIGHT,
    CELL_WIDTH,
    COLUMNS,
    LAYOUT_HEIGHT,
    LAYOUT_WIDTH,
    ROWS,
    Colour,
)
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.words import vocabulary

PAGE_INSTRUCTION = "Read the text"
NO_WORD = -1
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


def readable_words() -> tuple[str, ...]:
    """All words and numbers of pages."""
    return (*vocabulary(), *map(str, range(_MAX_NUMBER)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`words_RC`: in each cell the index of its word in `readable_words`, or `NO_WORD`."""

    frame: NDArray[np.uint8]
    answer: str  # the words with their centres, in reading order: "milk(28,7)Anna(98,7)"
    words_RC: NDArray[np.int16]


def random_page(rng: random.Random) -> Page:
    canvas = Desktop({}, APPS).draw(LAYOUT_WIDTH, LAYOUT_HEIGHT)  # the task bar shows where a word is
    words = vocabulary()
    words_RC = np.full((ROWS, COLUMNS), NO_WORD, dtype=np.int16)
    entries = []
    for row in range(ROWS - 1):
        if rng.random() < _EMPTY_ROWS:
            continue
        ink, paper = rng.choice(_STYLES)
        canvas.fill(0, row * CELL_HEIGHT, LAYOUT_WIDTH, CELL_HEIGHT, paper)
        column = 2 * rng.randrange(6)
        while True:
            number = rng.random() < _NUMBERS
            index = len(words) + rng.randrange(_MAX_NUMBER) if number else rng.randrange(len(words))
            word = str(index - len(words)) if number else words[index]
            if column + len(word) > COLUMNS:
                break
            canvas.text(column * CELL_WIDTH, row * CELL_HEIGHT, word, ink)
            words_RC[row, column : column + len(word)] = index
            x = column * CELL_WIDTH + len(word) * CELL_WIDTH // 2
            entries.append(f"{word}({x},{row * CELL_HEIGHT + CELL_HEIGHT // 2})")
            column += len(word) + rng.randint(1, 6)
    return Page(frame=canvas.pixels, answer="".join(entries), words_RC=words_RC)
