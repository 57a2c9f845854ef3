"""Pictures: hostile records of the pack are errors; thumbnails and compact pictures with worked numbers."""

import hashlib
import io
import os
import time
import zlib
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from arpo.errors import UserError
from arpo.storage.screenshots import CHANGE, HEADER, MAGIC, NO_BASE, PATCH, PNG
from arpo.viewer.files import SafeFolder
from arpo.viewer.index import Index
from arpo.viewer.pictures import (
    PackReader,
    Picture,
    PixelCache,
    changed_areas,
    checked_png,
    compact,
    thumbnail,
)
from pngs import header
from pngs import png as chunks
from stored_episodes import small

NAMES = [hashlib.sha256(bytes([number])).hexdigest() for number in range(40)]


def record(name, payload, kind=PATCH, base=""):
    base_name = bytes.fromhex(base) if base else NO_BASE
    return (
        HEADER.pack(MAGIC, kind, bytes.fromhex(name), base_name, len(payload), zlib.crc32(payload)) + payload
    )


def webp(size=(16, 12), colour=(10, 20, 30)):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


@pytest.fixture
def reader(tmp_path):
    """A function: the reader of a pack with this content."""
    indexes = []

    def make(*records):
        (tmp_path / "screenshots.pack").write_bytes(b"".join(records))
        index = Index(tmp_path)
        indexes.append(index)
        pack = PackReader(SafeFolder(tmp_path), index, PixelCache())
        assert pack.refresh(time.monotonic() + 60)
        return pack

    yield make
    for index in indexes:
        index.close()


def test_pictures_and_sizes(reader):
    shot = small(1)
    pack = reader(record(shot.sha256, shot.png, PNG), record(NAMES[0], webp()))
    assert pack.picture(shot.sha256).content == shot.png
    assert pack.size(shot.sha256) == (16, 12)
    assert pack.picture(NAMES[0]).media_type == "image/webp"
    assert pack.pixels(NAMES[0])[0, 0].tolist() == [10, 20, 30]


def test_indexing_goes_on_after_a_deadline_that_has_passed(reader, tmp_path, monkeypatch):
    """Episodes are indexed first. If they take all the time, every refresh still adds screenshots."""
    monkeypatch.setattr("arpo.viewer.pictures._RECORDS", 1)
    pack = reader()
    (tmp_path / "screenshots.pack").write_bytes(b"".join(record(name, webp()) for name in NAMES[:3]))
    assert [pack.refresh(time.monotonic() - 1) for _ in range(4)] == [False, False, False, True]
    assert pack.size(NAMES[2]) == (16, 12)


def test_an_incomplete_last_record_waits(reader, tmp_path):
    whole = record(NAMES[1], webp())
    pack = reader(record(NAMES[0], webp()), whole[:-3])
    with pytest.raises(UserError, match="deleted"):
        pack.size(NAMES[1])
    with (tmp_path / "screenshots.pack").open("ab") as file:
        file.write(whole[-3:])
    assert pack.refresh(time.monotonic() + 60)
    assert pack.size(NAMES[1]) == (16, 12)


def test_a_replaced_pack_is_indexed_again(reader, tmp_path):
    pack = reader(record(NAMES[0], webp()))
    (tmp_path / "new").write_bytes(record(NAMES[1], webp()) * 2)
    os.replace(tmp_path / "new", tmp_path / "screenshots.pack")
    assert pack.refresh(time.monotonic() + 60)
    assert pack.size(NAMES[1]) == (16, 12)
    with pytest.raises(UserError, match="deleted"):
        pack.size(NAMES[0])


def every_use(pack, name):
    for use in (pack.size, pack.picture, pack.pixels):
        with pytest.raises(UserError):
            use(name)


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (chunks(header(60_000, 60_000)), PNG),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", PATCH),
        (b"GIF89a\xff\xff\xff\xff" + bytes(50), PATCH),
        (b"", PATCH),
        (b"RIFF\x10\0\0\0WEBPVP8L", PATCH),
    ],
    ids=["bomb", "postscript", "gif", "empty", "torn"],
)
def test_a_hostile_picture_is_an_error(reader, payload, kind):
    name = hashlib.sha256(payload).hexdigest()
    every_use(reader(record(name, payload, kind)), name)


def test_a_png_under_another_name_and_a_wrong_checksum_are_errors(reader):
    damaged = bytearray(record(NAMES[1], webp()))
    damaged[-1] ^= 1
    pack = reader(record(NAMES[0], small(1).png, PNG), bytes(damaged))
    with pytest.raises(UserError, match="is damaged"):
        pack.picture(NAMES[0])
    every_use(pack, NAMES[1])


def test_a_picture_based_on_itself_and_a_long_chain_are_errors(reader):
    change = bytes(4) + webp((1, 1))
    chain = [record(NAMES[0], webp())]
    chain += [record(name, change, CHANGE, base) for base, name in pairwise(NAMES[:20])]
    pack = reader(*chain, record(NAMES[30], change, CHANGE, NAMES[30]))
    assert pack.pixels(NAMES[15]).shape == (12, 16, 3)
    every_use(pack, NAMES[19])
    every_use(pack, NAMES[30])


def test_a_change_outside_of_its_picture_is_an_error(reader):
    change = bytes([255, 255, 0, 0]) + webp((4, 4))
    pack = reader(record(NAMES[0], webp()), record(NAMES[1], change, CHANGE, NAMES[0]))
    with pytest.raises(UserError, match="damaged"):
        pack.pixels(NAMES[1])


def test_names_with_the_same_beginning_do_not_index_forever(reader):
    twin = NAMES[0][:16] + "0" * 48
    pack = reader(record(NAMES[0], webp()), record(twin, webp()))
    for _ in range(3):
        with pytest.raises(UserError, match="made again"):
            pack.size(twin)
        pack.refresh(time.monotonic() + 60)
    assert pack._index.generation == 1
    assert pack.size(NAMES[0]) == (16, 12)


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


def test_changed_areas_are_separate_and_tight():
    before = np.zeros((200, 320, 3), np.uint8)
    now = before.copy()
    now[10:20, 30:50] = 255
    now[150:152, 300:303, 1] = 9
    assert changed_areas(before, now) == (206 / 64000, [[30, 10, 20, 10], [300, 150, 3, 2]])
    assert changed_areas(before, before) == (0.0, [])
    assert changed_areas(before[:100], now) == (1.0, [[0, 0, 320, 200]])
