"""Thumbnails and compact pictures with worked numbers; pictures beyond the limits are refused."""

import io
from functools import partial

import numpy as np
import pytest
from PIL import Image

from arpo.errors import UserError
from arpo.viewer.pictures import Picture, PixelCache, checked_png, compact, thumbnail
from pngs import header
from pngs import png as chunks


def test_a_thumbnail_is_a_small_jpeg_and_never_larger_than_the_picture():
    pixels = np.full((100, 200, 3), 90, np.uint8)
    for wanted, size in ((100, (100, 50)), (1, (32, 16)), (5000, (200, 100))):
        picture = thumbnail(pixels, wanted)
        assert picture.media_type == "image/jpeg"
        assert Image.open(io.BytesIO(picture.content)).size == size


def test_a_wide_picture_is_scaled_down_to_webp_and_others_stay_as_they_are():
    for width, kind, size in ((960, "image/png", (960, 100)), (1920, "image/webp", (960, 50))):
        pixels = np.full((100, width, 3), 90, np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        original = Picture(content=buffer.getvalue(), media_type="image/png")
        found = compact(original, partial(np.asarray, pixels))
        assert found.media_type == kind and (found is original) == (width == 960)
        assert Image.open(io.BytesIO(found.content)).size == size


def test_an_absurd_size_is_refused_by_its_header():
    with pytest.raises(UserError, match="50000x50000"):
        checked_png(chunks(header(50_000, 50_000)))
    with pytest.raises(UserError, match="not a PNG"):
        checked_png(b"GIF89a" + bytes(100))


def test_the_cache_forgets_old_pictures(monkeypatch):
    monkeypatch.setattr("arpo.viewer.pictures.MAX_CACHED_BYTES", 250)
    cache, made = PixelCache(), []

    def make(name):
        made.append(name)
        return np.zeros(100, np.uint8)

    for name in "abacab":
        cache.get(name, partial(make, name))
    assert made == ["a", "b", "c", "b"]
