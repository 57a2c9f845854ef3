"""Screenshots are decoded completely, within limits, once."""

from __future__ import annotations

import io
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from arpo import png
from arpo.png import BadPng, decode, rgb
from arpo.types import Screenshot
from pngs import bomb, chunk, corrupt, cut_short, grey, header, plain
from pngs import png as built


def saved(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def noise(mode: str) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 4), dtype=np.uint8)
    return Image.fromarray(pixels).convert("RGB").quantize(32) if mode == "P" else Image.fromarray(
        pixels
    ).convert(mode)  # fmt: skip


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_decodes_as_in_pillow(mode: str) -> None:
    options = {"transparency": 3} if mode == "P" else {}
    data = saved(noise(mode), **options)
    image = decode(data)
    assert image.mode == "RGB"
    assert image.tobytes() == Image.open(io.BytesIO(data)).convert("RGB").tobytes()


def test_a_black_picture_is_complete() -> None:
    assert decode(built(IHDR, IDAT)).getcolors() == [(56 * 56, (0, 0, 0))]


def test_other_chunks_do_not_matter() -> None:
    """Texts, times and colour profiles are skipped, and a stream may be cut into any pieces."""
    stream = zlib.compress(grey(56, 56))
    parts = [chunk(b"IDAT", stream[i : i + 1]) for i in range(len(stream))]
    data = built(header(56, 56), chunk(b"tEXt", b"Title\0x"), *parts, chunk(b"tIME", b"\7\xe8\1\1\0\0\0"))
    assert decode(data).getcolors() == [(56 * 56, (0, 0, 0))]


def test_the_number_of_chunks_is_limited_by_the_size() -> None:
    """Each costs time, even an empty one: a small picture must not have tens of thousands."""
    for side, most in ((56, 67), (1024, 64 + 1025)):  # 64, and one per KiB of rows
        stream = chunk(b"IDAT", zlib.compress(grey(side, side)))
        empty = [chunk(b"IDAT", b"")] * (most - 3)  # IHDR, stream, IEND
        assert decode(built(header(side, side), stream, *empty)).size == (side, side)
        with pytest.raises(BadPng, match="is one too many"):
            decode(built(header(side, side), stream, *empty, empty[0]))


WHOLE = plain()
IHDR = header(56, 56)
IDAT = chunk(b"IDAT", zlib.compress(grey(56, 56)))
ROWS = (b"\0" + b"\xff" * 56) * 56
REFUSED = {
    "is not a PNG": [b"", b"GIF89a", WHOLE[:20], b"\0" + WHOLE[1:], built(IDAT), built(header(9, 9, 8, 5))],
    "is a damaged PNG: broken data stream": [corrupt(WHOLE)],
    "is a damaged PNG: image file is truncated": [
        cut_short(WHOLE),
        built(IHDR, chunk(b"IDAT", b"")),
        built(IHDR, chunk(b"IDAT", zlib.compress(ROWS[:-1]))),
    ],
    "is a damaged PNG: rows are missing": [
        built(IHDR, chunk(b"IDAT", zlib.compress(ROWS[:end]))) for end in (57, 57 * 55)
    ],
    "is a damaged PNG: cannot load this image": [built(IHDR)],
    "is a damaged PNG: its header or its pixels are invalid$": [built(header(56, 56, 5), IDAT)],
    "the chunk at byte 33 has a wrong checksum": [WHOLE.replace(b"IDATx\x9c", b"IDATx\x9d")],
    "its end is missing": [WHOLE[:-1], WHOLE[:-12], WHOLE[:40], WHOLE[:33]],
    "4 bytes follow its end": [WHOLE + b"more"],
    "the chunk at byte 33 is one too many": [built(IHDR, header(9000, 9000), IDAT)],
    "is one too many": [
        built(IHDR, IDAT, chunk(b"tEXt", b"a\0b"), IDAT),
        built(IHDR, *[chunk(b"tEXt", b"")] * 67, IDAT),
        built(IHDR, IDAT, *[chunk(b"IDAT", b"")] * 67),
    ],
    "is an interlaced PNG": [built(header(56, 56, interlaced=1), IDAT)],
    "is an animated PNG": [built(IHDR, chunk(b"acTL", b"\0\0\0\2\0\0\0\0"), IDAT)],
    "has 16 bits per channel, must have at most 8": [built(header(56, 56, 16), IDAT)],
    "has 1,100,000 bytes, too many for 56x56 pixels": [
        built(IHDR, chunk(b"tEXt", bytes(1_100_000 - len(built(IHDR, IDAT)) - 12)), IDAT)
    ],
    "is 16384x100, must have sides of 8 to 16,383 pixels": [plain(16_384, 100)],
    "is 100x16384, must have sides of 8 to 16,383 pixels": [plain(100, 16_384)],
    "is 1x1, must have sides of 8": [plain(1, 1)],
    "is 0x56, must have sides of 8": [built(header(0, 56), IDAT)],
    "is 8000x8000, must have at most 33,554,432 pixels": [built(header(8000, 8000), IDAT)],
    "is 3000x10, must not have one side over 200 times the other": [plain(3000, 10)],
}


@pytest.mark.parametrize("message", REFUSED)
def test_a_bad_picture_is_refused(message: str) -> None:
    for data in REFUSED[message]:
        with pytest.raises(BadPng, match=message):
            decode(data)


def test_compressed_texts_are_not_unpacked() -> None:
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(1 << 20), 9))
    data = built(IHDR, *[text] * 60, IDAT)
    tracemalloc.start()
    decode(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_bomb_is_refused_without_memory_for_its_pixels(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(bomb())
    code = """
import resource, sys
from arpo.png import BadPng, decode
data = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode(data)
except BadPng as error:
    print(error, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "bomb.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *message, megabytes = done.stdout.split()
    assert " ".join(message) == "the screenshot is 13300x13300, must have at most 33,554,432 pixels"
    assert int(megabytes) < 16


def test_more_data_than_pixels_is_not_unpacked() -> None:
    stream = zlib.compress(bytes(1 << 26), 9)  # 64 MiB for an image of 3 KB
    tracemalloc.start()
    assert decode(built(IHDR, chunk(b"IDAT", stream))).size == (56, 56)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@given(data=st.data())
def test_a_changed_picture_is_an_image_of_its_size_or_refused(data: st.DataObject) -> None:
    """Also with right checksums: a hostile guest computes them."""
    colour, channels = data.draw(st.sampled_from([(0, 1), (2, 3), (3, 1), (4, 2), (6, 4)]))
    stream = bytearray(zlib.compress((b"\4" + bytes(range(9 * channels))) * 9))
    palette = data.draw(st.binary(max_size=12))
    for index in data.draw(st.lists(st.integers(0, len(stream) - 1), max_size=3)):
        stream[index] ^= data.draw(st.integers(0, 255))
    depth = data.draw(st.sampled_from([0, 1, 2, 3, 4, 8, 16, 255]))
    parts = [chunk(b"PLTE", palette), chunk(b"IDAT", bytes(stream))]
    whole = built(header(9, 9, depth, colour), *data.draw(st.permutations(parts)))
    try:
        assert decode(whole).size == (9, 9)
    except BadPng as error:
        assert str(error).startswith("the screenshot ")


def test_a_screenshot_is_decoded_once() -> None:
    shot, equal = Screenshot.of(plain(57, 58)), Screenshot.of(plain(57, 58))
    assert rgb(shot) is rgb(equal)
    assert png.has_rgb_pixels(saved(noise("RGB"))) and not png.has_rgb_pixels(saved(noise("RGBA")))


def test_the_cache_is_limited_and_drops_the_least_recently_used() -> None:
    image = Image.new("RGB", (10, 10))
    cache = png._Cache(limit=1000)  # two images of 400 bytes
    for name in ("a", "b", "a"):
        cache.put(name, image)
    assert cache.get("a") is image
    cache.put("c", image)
    assert cache.get("b") is None
    assert cache.get("a") is cache.get("c") is image
