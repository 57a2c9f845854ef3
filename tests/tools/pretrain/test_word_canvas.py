"""The words of a screen: what is shown where, and nothing that is covered."""

from __future__ import annotations

import random

import numpy as np

from arpo.envs.desk.canvas import Canvas, Colour
from tools.pretrain.screens import random_desktop
from tools.pretrain.word_canvas import NO_WORD, WordCanvas, draw, readable_words

WORDS = readable_words()


def shown(canvas: WordCanvas) -> dict[tuple[int, int], str]:
    """The word of every cell (row, column) that has one."""
    cells = zip(*np.nonzero(canvas.words_RC != NO_WORD), strict=True)
    return {(int(row), int(column)): WORDS[canvas.words_RC[row, column]] for row, column in cells}


def test_words_and_numbers_are_found_in_their_cells() -> None:
    canvas = WordCanvas()
    canvas.text(14, 28, "To 40 qx", Colour.INK)  # "qx" is not in the vocabulary
    assert shown(canvas) == {(2, 2): "To", (2, 3): "To", (2, 5): "40", (2, 6): "40"}


def test_a_rectangle_hides_what_it_covers() -> None:
    canvas = WordCanvas()
    canvas.text(0, 0, "milk tea", Colour.INK)
    canvas.fill(4 * 7, 0, 40, 14, Colour.PAPER)
    assert shown(canvas) == dict.fromkeys([(0, 0), (0, 1), (0, 2), (0, 3)], "milk")
    canvas.fill(20, 2, 2, 10, Colour.INK)  # a caret hides no word
    assert len(shown(canvas)) == 4


def test_new_text_replaces_old_text() -> None:
    canvas = WordCanvas()
    canvas.text(0, 0, "milk", Colour.INK)
    canvas.text(0, 0, "=A1+", Colour.INK)
    assert (0, 0) not in shown(canvas)


def test_the_words_of_desktops_are_on_the_screen() -> None:
    """Every labelled word that is visible as a whole has the shape of its letters in one colour."""
    rng = random.Random(3)
    whole = 0
    for _ in range(30):
        screen = draw(random_desktop(rng))
        for row in range(12):
            for column in range(32):
                index = screen.words_RC[row, column]
                if index == NO_WORD:
                    continue
                word = WORDS[index]
                end = column + len(word)
                if (column and screen.words_RC[row, column - 1] == index) or end > 32:
                    continue
                if not (screen.words_RC[row, column:end] == index).all():
                    continue
                whole += 1
                assert is_written(screen, row, column, word), (word, row, column)
    assert whole > 300


def is_written(screen: WordCanvas, row: int, column: int, word: str) -> bool:
    """Whether all ink pixels of the word have one colour on the screen, at most half a cell to the left."""
    for shift in range(-3, 1):  # the close mark is not aligned to cells
        letters = Canvas(224, 168)
        letters.text(column * 7 + shift, row * 14, word, Colour.INK)
        ink = letters.pixels == Colour.INK
        counts = np.unique(screen.pixels[ink], return_counts=True)[1]
        if len(counts) and counts.max() >= 0.9 * ink.sum():  # a caret may cross a letter
            return True
    return False
