"""Pages of words: every word is where the answer says."""

from __future__ import annotations

import random
import re

import numpy as np

from arpo.envs.desk.canvas import Canvas
from arpo.envs.desk.words import vocabulary
from tools.pretrain.pages import _STYLES, page_to_search, random_page
from tools.pretrain.word_canvas import NO_WORD, readable_words


def test_a_page_shows_its_words_at_their_places() -> None:
    page, answer = random_page(random.Random(0))
    pixels = page.pixels
    entries = re.findall(r"([A-Za-z0-9]+)\((\d+),(\d+)\)", answer)
    assert "".join(f"{word}({x},{y})" for word, x, y in entries) == answer
    assert 12 <= len(entries) <= 60
    words = [
        (readable_words()[page.words_RC[row, column]], int(column), int(row))
        for row, column in zip(*np.nonzero(page.words_RC[:-1] != NO_WORD), strict=True)
    ]
    first = [(word, (int(x) - len(word) * 7 // 2) // 7, int(y) // 14) for word, x, y in entries]
    assert words == [(word, column + i, row) for word, column, row in first for i in range(len(word))]
    for word, x, y in entries:
        left, top = int(x) - len(word) * 7 // 2, int(y) - 7
        area = np.s_[top : top + 14, left : left + 7 * len(word)]
        canvas = Canvas(224, 168)
        shown = []
        for ink, paper in _STYLES:
            canvas.fill(0, top, 224, 14, paper)
            canvas.text(left, top, word, ink)
            shown.append(np.array_equal(canvas.pixels[area], pixels[area]))
        assert any(shown), word


def test_pages_contain_all_words_and_numbers() -> None:
    rng = random.Random(1)
    found = {word for _ in range(200) for word in re.findall("[A-Za-z]+", random_page(rng)[1])}
    assert found == set(vocabulary())


def test_words_to_find_are_in_the_cells_of_the_targets() -> None:
    for seed in range(40):
        page, question = page_to_search(random.Random(seed))
        instruction = question.instruction.split()[1:]
        entries = re.findall(r"([A-Za-z0-9]+)\((\d+),(\d+)\)", question.answer)
        assert [word for word, *_ in entries] == instruction
        assert 1 <= len(instruction) == len(question.targets) <= 4
        for (word, x, y), (row, column, rows, columns) in zip(entries, question.targets, strict=True):
            assert {readable_words()[i] for i in page.words_RC[row, column : column + columns]} == {word}
            assert (rows, columns) == (1, len(word))
            assert (int(x) // 7 - column, int(y) // 14) == (columns // 2, row)
