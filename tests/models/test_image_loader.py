"""Prefetched screenshots have the same pixels as others."""

from __future__ import annotations

import numpy as np

from arpo.envs.desk.base_model.tiny import IMAGE_SETTINGS
from arpo.models.image_loader import ImageLoader
from arpo.prompts import vision
from tiny_vlm import screenshot


def test_prefetching_does_not_change_pixels() -> None:
    shots = [screenshot(1), screenshot(2, 140, 56), screenshot(1)]
    loader = ImageLoader(IMAGE_SETTINGS)
    loader.prefetch(shots[:1])
    for shot, found in zip(shots, [loader.load([shot])[0] for shot in shots], strict=True):
        np.testing.assert_array_equal(found, vision.pixels(shot, IMAGE_SETTINGS))


def test_each_result_is_returned_once_and_not_cached() -> None:
    loader = ImageLoader(IMAGE_SETTINGS)
    loader.prefetch([screenshot(1), screenshot(1), screenshot(2)])
    assert len(loader._pending) == 2
    loader.load([screenshot(1), screenshot(2)])
    assert not loader._pending
