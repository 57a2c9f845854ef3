"""Web pages for pretraining, drawn by Chromium."""

import random
import zipfile

import numpy as np
from PIL import ImageColor

from apart import run_apart
from tools.pretrain.web_lessons import load, palette
from tools.pretrain.web_pages import colours, draw, drawn_page, opened_window, write


def test_elements_are_where_the_page_says():
    async def scenario():
        rng = random.Random(0)
        pages = [colours(rng) for _ in range(5)]
        async with opened_window() as window:
            return pages, await draw(window, [drawn_page(rng, page)[0] for page in pages])

    pages, (pixels, places) = run_apart(scenario())
    assert pixels.shape == (5, 210, 160, 3)
    for page, screen, (words, elements) in zip(pages, pixels, places, strict=True):
        for name, (x, y, width, height, *_) in zip(page.names, elements, strict=True):
            if y + height < 210 and x + width < 160:
                assert tuple(screen[y + height // 2, x + width // 2]) == ImageColor.getrgb(name)
        assert all(x >= 0 and y >= 0 for _, x, y, _, _ in words)


def test_a_file_of_pages_is_read_again(tmp_path):
    with zipfile.ZipFile(tmp_path / "pages.zip", "w", zipfile.ZIP_LZMA) as archive:
        run_apart(write(archive, 1, 0))
    pixels, pages = load([tmp_path / "pages.zip"])
    assert len(pixels) > 150
    assert 100 < len(pages) <= len(pixels)
    assert np.unique(palette()[pixels[0]].reshape(-1, 3), axis=0).shape[0] > 3
