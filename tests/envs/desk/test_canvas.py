"""Canvas: rectangles, discs and text at any size; Pillow decodes the same pixels from the PNG."""

import io

import numpy as np
import pytest
from PIL import Image

from arpo.envs.desk.canvas import PALETTE, Canvas, Colour


def bounding_box(canvas: Canvas, colour: Colour) -> tuple[int, int, int, int]:
    """Bounding box (left, top, right, bottom) of a colour."""
    rows, columns = np.nonzero(canvas.pixels == colour)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def test_a_new_canvas_is_wallpaper() -> None:
    assert (Canvas(224, 168).pixels == Colour.WALLPAPER).all()
    assert Canvas(224, 168).pixels.shape == (168, 224)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((224, 168), (7, 14, 21, 42)),
        ((448, 336), (14, 28, 42, 84)),
        ((1920, 1080), (60, 90, 180, 270)),
        ((300, 200), (9, 17, 28, 50)),  # 7 * 300/224 = 9.4, 14 * 200/168 = 16.7, 21 → 28.1, 42 → 50
    ],
)
def test_a_rectangle_scales_with_the_screen(
    size: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    canvas = Canvas(*size)
    canvas.fill(7, 14, 14, 28, Colour.ACCENT)
    assert bounding_box(canvas, Colour.ACCENT) == expected
    left, top, right, bottom = expected
    assert (canvas.pixels == Colour.ACCENT).sum() == (right - left) * (bottom - top)


def test_neighbours_leave_no_gap_and_no_overlap_at_any_size() -> None:
    canvas = Canvas(301, 203)
    for column in range(32):
        for row in range(12):
            area = canvas.area(7 * column, 14 * row, 7, 14)
            assert (canvas.pixels[area] == Colour.WALLPAPER).all()
            canvas.pixels[area] = Colour.INK
    assert (canvas.pixels == Colour.INK).all()


def test_a_box_has_an_edge_of_one_unit() -> None:
    canvas = Canvas(224, 168)
    canvas.box(10, 20, 6, 4, Colour.FACE, Colour.EDGE)
    assert bounding_box(canvas, Colour.EDGE) == (10, 20, 16, 24)
    assert bounding_box(canvas, Colour.FACE) == (11, 21, 15, 23)
    assert (canvas.pixels == Colour.EDGE).sum() == 6 * 4 - 4 * 2


def test_a_disc_is_round() -> None:
    canvas = Canvas(224, 168)
    canvas.disc(50, 60, 6, Colour.INK)
    disc = canvas.pixels[54:66, 44:56] == Colour.INK
    assert bounding_box(canvas, Colour.INK) == (44, 54, 56, 66)
    assert not disc[0, 0] and disc[6, 6]
    assert (disc == disc.T).all() and (disc == disc[::-1]).all()


def test_each_character_stays_in_its_cell() -> None:
    together, alone = Canvas(224, 168), Canvas(224, 168)
    together.text(70, 42, "Wg", Colour.INK)
    alone.text(70, 42, "W", Colour.INK)
    alone.text(77, 42, "g", Colour.INK)
    assert (together.pixels == alone.pixels).all()
    left, top, right, bottom = bounding_box(together, Colour.INK)
    assert left >= 70 and right <= 84
    assert top >= 42 and bottom <= 56


def test_text_keeps_its_background() -> None:
    canvas = Canvas(224, 168)
    canvas.fill(0, 0, 70, 14, Colour.FOLDER)
    canvas.text(0, 0, "apples", Colour.INK)
    assert set(np.unique(canvas.pixels[:14, :70])) == {Colour.FOLDER, Colour.INK}


@pytest.mark.parametrize("size", [(224, 168), (1920, 1080)])
def test_text_beyond_the_screen_is_clipped(size: tuple[int, int]) -> None:
    cut, whole = Canvas(*size), Canvas(*size)
    cut.text(217, 154, "Ag" * 40, Colour.INK)
    whole.text(217, 154, "A", Colour.INK)
    assert (cut.pixels == whole.pixels).all()


@pytest.mark.parametrize("text", ["🙂", "漢", "\U0010ffff"])
def test_unsupported_characters_are_question_marks(text: str) -> None:
    canvas, expected = Canvas(224, 168), Canvas(224, 168)
    canvas.text(0, 0, f"a{text}b", Colour.INK)
    expected.text(0, 0, "a?b", Colour.INK)
    assert (canvas.pixels == expected.pixels).all()


@pytest.mark.parametrize("size", [(224, 168), (1920, 1080), (32, 12)])
def test_any_character_can_be_written(size: tuple[int, int]) -> None:
    canvas = Canvas(*size)
    canvas.text(0, 0, "".join(map(chr, range(256))) + "\ud800 \u200b", Colour.INK)
    written = canvas.pixels.copy()
    canvas.text(0, 14, "", Colour.INK)
    assert set(written.flat) <= {Colour.WALLPAPER, Colour.INK}
    assert (canvas.pixels == written).all()  # empty text draws nothing


@pytest.mark.parametrize("size", [(224, 168), (448, 336), (1920, 1080), (301, 203), (1, 1)])
def test_the_png_contains_the_pixels(size: tuple[int, int]) -> None:
    canvas = Canvas(*size)
    canvas.fill(30, 30, 100, 50, Colour.PAPER)
    canvas.disc(60, 60, 20, Colour.DANGER)
    canvas.text(35, 42, "report", Colour.INK)
    png = canvas.png()
    with Image.open(io.BytesIO(png)) as image:
        image.verify()
    with Image.open(io.BytesIO(png)) as image:
        assert image.size == size
        assert (np.asarray(image.convert("RGB")) == PALETTE[canvas.pixels]).all()


def test_the_png_contains_every_colour() -> None:
    canvas = Canvas(224, 168)
    for colour in Colour:
        canvas.fill(7 * colour, 0, 7, 14, colour)
    with Image.open(io.BytesIO(canvas.png())) as image:
        shown = np.asarray(image.convert("RGB"))[7, 3 : 7 * len(Colour) : 7]
    assert (shown == PALETTE).all()
