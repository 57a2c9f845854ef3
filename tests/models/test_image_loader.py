"""Prefetched screenshots have the same pixels as others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from arpo.models import image_loader
from arpo.models.image_loader import ImageLoader
from arpo.png import BadPng
from arpo.prompts import vision
from arpo.types import Screenshot
from pngs import corrupt
from tiny_vlm import screenshot
from tools.pretrain.tiny import IMAGE_SETTINGS


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


def blocked_loader(monkeypatch: pytest.MonkeyPatch) -> tuple[ImageLoader, threading.Event]:
    """A loader with one thread, which decodes once the event is set."""
    go, pixels = threading.Event(), vision.pixels

    def wait(*arguments: Any) -> Any:
        assert go.wait(60)
        return pixels(*arguments)

    monkeypatch.setattr(image_loader, "_THREADS", 1)
    monkeypatch.setattr(vision, "pixels", wait)
    return ImageLoader(IMAGE_SETTINGS), go


def test_a_waiter_wakes_when_a_screenshot_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    loader, go = blocked_loader(monkeypatch)
    shots = [screenshot(1), screenshot(2)]

    async def wait() -> None:
        await loader.wait_for_any()  # nothing is being decoded
        loader.prefetch(shots[:1])
        assert not loader.is_ready(shots) and loader.is_ready(shots[1:])
        waiter = asyncio.create_task(loader.wait_for_any())
        await asyncio.sleep(0)
        assert not waiter.done()
        go.set()
        await asyncio.wait_for(waiter, timeout=60)
        assert loader.is_ready(shots)

    asyncio.run(wait())


def test_a_waiter_wakes_when_queued_screenshots_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only thread is busy with the first one; the second one is cancelled."""
    loader, go = blocked_loader(monkeypatch)
    shots = [screenshot(1), screenshot(2)]

    async def wait() -> None:
        loader.prefetch(shots)
        waiter = asyncio.create_task(loader.wait_for_any())
        await asyncio.sleep(0)
        loader.clear()
        await asyncio.wait_for(waiter, timeout=60)
        assert loader.is_ready(shots)
        go.set()

    asyncio.run(wait())
    assert len(loader.load(shots)) == 2


def test_a_damaged_screenshot_is_ready_and_fails_when_it_is_loaded() -> None:
    loader = ImageLoader(IMAGE_SETTINGS)
    damaged = Screenshot.of(corrupt(screenshot(1).png))
    loader.prefetch([damaged, screenshot(2)])
    with pytest.raises(BadPng):
        loader.load([damaged, screenshot(2)])
    assert len(loader.load([screenshot(2)])) == 1
    assert not loader._pending
