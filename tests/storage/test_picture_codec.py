import numpy as np
import pytest
from PIL import Image

from arpo.storage.picture_codec import apply_change, apply_patch, decode_whole, encode
from stored_episodes import desktop, pixels_of


def picture(pixels):
    return Image.fromarray(pixels)


def test_a_whole_picture_and_a_change_keep_every_pixel():
    before = pixels_of(desktop(1))
    after = before.copy()
    after[20:30, 300:390] ^= 3
    after[250, 7] ^= 1
    assert np.array_equal(decode_whole(encode(picture(before), None)), before)
    change = encode(picture(after), picture(before))
    assert np.array_equal(apply_change(change, before), after)
    assert len(change) < len(encode(picture(after), None)) / 10


def test_a_change_has_only_the_rectangle_around_the_changed_pixels():
    before = np.zeros((300, 400, 3), np.uint8)
    after = before.copy()
    after[40:50, 60:80] = 9
    change = encode(picture(after), picture(before))
    assert change[:4] == bytes([60, 0, 40, 0])  # left, top
    assert decode_whole(change[4:]).shape == (10, 20, 3)


def test_equal_pixels_have_a_change_as_well():
    """Two PNGs may differ and have the same pixels."""
    before = pixels_of(desktop(1))
    assert np.array_equal(apply_change(encode(picture(before), picture(before)), before), before)


def test_a_change_outside_of_its_base_is_damage():
    before = np.zeros((30, 40, 3), np.uint8)
    after = before + np.uint8(1)
    change = encode(picture(after), picture(before))
    for damaged in (b"\1" + change[1:], change[:3]):
        with pytest.raises(ValueError, match=r"outside of the picture|no position"):
            apply_change(damaged, before)
    with pytest.raises(ValueError, match="outside of the picture"):
        apply_patch(encode(picture(after), None), before[:20])
