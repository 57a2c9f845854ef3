"""Thumbnails and changed regions with worked numbers; pictures beyond the limits are refused."""

import io
from functools import partial

import numpy as np
import pytest
from PIL import Image

from arpo.errors import UserError
from arpo.viewer.app.pictures import PixelCache, changed_regions, checked_png, thumbnail
from pngs import header
from pngs import png as chunks


def test_changed_regions_are_boxes_of_cells():
    before = np.zeros((100, 200, 3), np.uint8)
    after = before.copy()
    after[20:30, 20:40] = 255  # cells 1 x 1 to 2
    after[90:100, 190:200] = 255  # the last cells, cut at the border
    found = changed_regions(before, after)
    assert found is not None
    boxes, share = found
    assert boxes == [[16, 16, 48, 32], [176, 80, 200, 100]]
    assert share == pytest.approx((200 + 100) / 20_000)


def test_equal_pictures_have_no_regions_and_other_sizes_cannot_be_compared():
    picture = np.zeros((32, 32, 3), np.uint8)
    assert changed_regions(picture, picture) == ([], 0.0)
    assert changed_regions(picture, np.zeros((32, 16, 3), np.uint8)) is None


def test_a_thumbnail_is_a_small_jpeg_and_never_larger_than_the_picture():
    pixels = np.full((100, 200, 3), 90, np.uint8)
    for wanted, size in ((100, (100, 50)), (1, (32, 16)), (5000, (200, 100))):
        picture = thumbnail(pixels, wanted)
        assert picture.media_type == "image/jpeg"
        assert Image.open(io.BytesIO(picture.content)).size == size


def test_an_absurd_size_is_refused_by_its_header():
    with pytest.raises(UserError, match="50000x50000"):
        checked_png(chunks(header(50_000, 50_000)))
    with pytest.raises(UserError, match="not a PNG"):
        checked_png(b"GIF89a" + bytes(100))


def test_the_cache_forgets_old_pictures(monkeypatch):
    monkeypatch.setattr("arpo.viewer.app.pictures.MAX_CACHED_BYTES", 250)
    cache, made = PixelCache(), []

    def make(name):
        made.append(name)
        return np.zeros(100, np.uint8)

    for name in "abacab":
        cache.get(name, partial(make, name))
    assert made == ["a", "b", "c", "b"]
