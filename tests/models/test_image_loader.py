"""Pictures that are unpacked ahead are those that would be unpacked later."""

from __future__ import annotations

import numpy as np

from arpo.envs.desk.base_model.tiny import IMAGE_SETTINGS
from arpo.models.image_loader import Pictures
from arpo.prompts import vision
from tiny_vlm import screenshot


def test_expected_or_not_a_picture_is_the_same() -> None:
    shots = [screenshot(1), screenshot(2, 140, 56), screenshot(1)]
    pictures = Pictures(IMAGE_SETTINGS)
    pictures.expect(shots[:1])
    for shot, found in zip(shots, [pictures.take([shot])[0] for shot in shots], strict=True):
        np.testing.assert_array_equal(found, vision.pixels(shot, IMAGE_SETTINGS))


def test_each_is_handed_out_once_and_nothing_is_kept() -> None:
    pictures = Pictures(IMAGE_SETTINGS)
    pictures.expect([screenshot(1), screenshot(1), screenshot(2)])
    assert len(pictures._coming) == 2
    pictures.take([screenshot(1), screenshot(2)])
    assert not pictures._coming
