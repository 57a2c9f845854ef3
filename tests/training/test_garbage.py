"""Collections during a run are short, and skip the objects that exist before it."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from arpo.training import garbage
from arpo.training.garbage import short_collections


class Node:
    def __init__(self) -> None:
        self.itself = self  # only a collection finds it


def test_objects_of_before_are_collected_after_the_block() -> None:
    default = gc.get_threshold()
    old = Node()
    reference = weakref.ref(old)

    async def run() -> None:
        async with short_collections():
            assert gc.get_threshold() == (10_000, default[1], 1_000)
            new = weakref.ref(Node())
            gc.collect()
            assert reference() is not None
            assert new() is None

    del old
    asyncio.run(run())
    gc.collect()
    assert reference() is None
    assert gc.get_threshold() == default


@pytest.mark.parametrize("old", [False, True])
def test_objects_are_collected_by_time(old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if old:
        monkeypatch.setattr(garbage, "_SECONDS", 0.001)

    async def run() -> None:
        async with short_collections():
            node = Node()
            if old:  # it has survived the collections of younger objects
                gc.collect(0), gc.collect(1)
                assert any(node is one for one in gc.get_objects(generation=2))
            new = weakref.ref(node)
            del node
            assert new() is not None
            while new() is not None:  # noqa: ASYNC110  (a collection makes no event)
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 30))
