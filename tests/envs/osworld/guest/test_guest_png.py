"""The guest's PNG encoder: exact pixels, and compression of changed bands only."""

import io
import random

import pytest
from PIL import Image

from arpo.envs.osworld.guest import png
from arpo.envs.osworld.guest.png import PngEncoder


def colors(data):
    image = Image.open(io.BytesIO(data))
    image.load()  # checks the checksums
    assert image.mode == "RGB"
    return image.size, image.tobytes()


def test_pixels_come_back_exactly():
    pixels = bytes((1, 2, 3, 0, 40, 50, 60, 0, 255, 0, 128, 0, 7, 8, 9, 255, 0, 0, 0, 0, 200, 100, 50, 0))
    expected = bytes((3, 2, 1, 60, 50, 40, 128, 0, 255, 9, 8, 7, 0, 0, 0, 50, 100, 200))
    assert colors(PngEncoder(3, 2).encode(pixels)) == ((3, 2), expected)


@pytest.mark.parametrize("rows", [1, 7, 10, 1000])
def test_bands_form_one_image(rows, monkeypatch):
    monkeypatch.setattr(png, "BAND_ROWS", rows)
    width, height = 33, 50
    encoder = PngEncoder(width, height)
    draw = random.Random(0)
    pixels = bytearray(draw.randbytes(width * height * 4))
    for _ in range(20):
        offset = draw.randrange(width * height) * 4
        pixels[offset : offset + 4] = draw.randbytes(4)
        expected = Image.frombytes("RGB", (width, height), bytes(pixels), "raw", "BGRX").tobytes()
        assert colors(encoder.encode(bytes(pixels))) == ((width, height), expected)


def test_an_unchanged_screen_gives_the_same_bytes():
    encoder, pixels = PngEncoder(4, 200), bytes(4 * 200 * 4)
    first = encoder.encode(pixels)
    assert encoder.encode(pixels) is first


def test_an_image_does_not_depend_on_previous_images():
    one, other = bytes(4 * 200 * 4), b"\x05" * (4 * 200 * 4)
    encoder = PngEncoder(4, 200)
    images = [encoder.encode(pixels) for pixels in (one, other, one)]
    assert images[0] == images[2] == PngEncoder(4, 200).encode(one)
    assert images[1] == PngEncoder(4, 200).encode(other)
