"""Collections during a run are rare, and skip the objects that exist before it."""

from __future__ import annotations

import gc
import weakref

from arpo.training.garbage import rare_collections


class Node:
    def __init__(self) -> None:
        self.itself = self  # only a collection finds it


def test_objects_of_before_are_collected_after_the_block() -> None:
    default = gc.get_threshold()
    old = Node()
    reference = weakref.ref(old)
    with rare_collections():
        del old
        assert gc.get_threshold() == (10_000, *default[1:])
        new = weakref.ref(Node())
        gc.collect()
        assert reference() is not None
        assert new() is None
    gc.collect()
    assert reference() is None
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == default
