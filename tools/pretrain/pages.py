"""Pages of words: a screen full of text in the fonts and colours of Desk, to learn to read any word anywhere.

On a desktop most text repeats: names of buttons and tabs. A page has about 25 random words of the vocabulary.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from arpo.envs.desk.apps import APPS
from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH, COLUMNS, LAYOUT_WIDTH, ROWS, Colour
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.words import vocabulary
from tools.pretrain.reading import FIND, Question, number_to_find
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    text: str
    row: int
    column: int

    @property
    def entry(self) -> str:
        """The word with its centre: "milk(28,7)"."""
        x = self.column * CELL_WIDTH + len(self.text) * CELL_WIDTH // 2
        return f"{self.text}({x},{self.row * CELL_HEIGHT + CELL_HEIGHT // 2})"


def random_page(rng: random.Random) -> tuple[WordCanvas, str]:
    """A page, and its words with their centres in reading order: "milk(28,7)Anna(98,7)"."""
    canvas, words = _page(rng)
    return canvas, "".join(word.entry for word in words)


def page_to_search(rng: random.Random) -> tuple[WordCanvas, Question]:
    """A page, and the question where some of its words are: "Select Anna milk" is "Anna(98,7)milk(28,7)"."""
    canvas, words = _page(rng)
    counts = Counter(word.text for word in words)
    unique = [word for word in words if counts[word.text] == 1]
    asked = rng.sample(unique, min(len(unique), number_to_find(rng)))
    question = Question(
        instruction=f"{FIND} {' '.join(word.text for word in asked)}",
        answer="".join(word.entry for word in asked),
        targets=tuple((word.row, word.column, 1, len(word.text)) for word in asked),
    )
    return canvas, question


def _page(rng: random.Random) -> tuple[WordCanvas, list[Word]]:
    canvas = WordCanvas()
    Desktop({}, APPS).draw_on(canvas)  # the task bar shows where a word is
    known = vocabulary()
    words: list[Word] = []
    for row in range(ROWS - 1):
        if rng.random() < _EMPTY_ROWS:
            continue
        ink, paper = rng.choice(_STYLES)
        canvas.fill(0, row * CELL_HEIGHT, LAYOUT_WIDTH, CELL_HEIGHT, paper)
        column = 2 * rng.randrange(6)
        while True:
            number = rng.random() < _NUMBERS
            word = str(rng.randrange(NUMBERS)) if number else known[rng.randrange(len(known))]
            if column + len(word) > COLUMNS:
                break
            canvas.text(column * CELL_WIDTH, row * CELL_HEIGHT, word, ink)
            words.append(Word(text=word, row=row, column=column))
            column += len(word) + rng.randint(1, 6)
    return canvas, words
