"""Pages of words: a screen full of text in the fonts and colours of Desk, to learn to read any word anywhere.

On a desktop most text repeats: names of buttons and tabs. A page has about 25 random words of the vocabulary.
"""

from __future__ import annotations

import random

from arpo.envs.desk.apps import APPS
from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH, COLUMNS, LAYOUT_WIDTH, ROWS, Colour
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.words import vocabulary
from tools.pretrain.word_canvas import NUMBERS, WordCanvas

PAGE_INSTRUCTION = "Read the text"
_NUMBERS = 0.15  # share of numbers among the words
_EMPTY_ROWS = 0.15
# (text, background) as in Desk: fields, lists, selected rows, buttons, titles, tabs, menus, the task bar.
_STYLES = (
    (Colour.INK, Colour.FIELD), (Colour.INK, Colour.FIELD), (Colour.INK, Colour.PAPER),
    (Colour.LIGHT, Colour.ACCENT), (Colour.INK, Colour.FACE), (Colour.LIGHT, Colour.TITLE),
    (Colour.LIGHT, Colour.TITLE_IDLE), (Colour.INK, Colour.DIM), (Colour.TITLE, Colour.LIGHT),
    (Colour.LIGHT, Colour.EDGE),
)  # fmt: skip


def random_page(rng: random.Random) -> tuple[WordCanvas, str]:
    """A page, and its words with their centres in reading order: "milk(28,7)Anna(98,7)"."""
    canvas = WordCanvas()
    Desktop({}, APPS).draw_on(canvas)  # the task bar shows where a word is
    words = vocabulary()
    entries = []
    for row in range(ROWS - 1):
        if rng.random() < _EMPTY_ROWS:
            continue
        ink, paper = rng.choice(_STYLES)
        canvas.fill(0, row * CELL_HEIGHT, LAYOUT_WIDTH, CELL_HEIGHT, paper)
        column = 2 * rng.randrange(6)
        while True:
            number = rng.random() < _NUMBERS
            word = str(rng.randrange(NUMBERS)) if number else words[rng.randrange(len(words))]
            if column + len(word) > COLUMNS:
                break
            canvas.text(column * CELL_WIDTH, row * CELL_HEIGHT, word, ink)
            x = column * CELL_WIDTH + len(word) * CELL_WIDTH // 2
            entries.append(f"{word}({x},{row * CELL_HEIGHT + CELL_HEIGHT // 2})")
            column += len(word) + rng.randint(1, 6)
    return canvas, "".join(entries)
