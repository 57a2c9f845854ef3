"""Collections skip the objects that exist before a run."""

from __future__ import annotations

import gc
import weakref

from arpo.training.garbage import loaded_objects_uncollected


class Node:
    def __init__(self) -> None:
        self.itself = self  # only a collection finds it


def test_objects_of_before_are_collected_after_the_block() -> None:
    old = Node()
    reference = weakref.ref(old)
    with loaded_objects_uncollected():
        del old
        new = weakref.ref(Node())
        gc.collect()
        assert reference() is not None
        assert new() is None
    gc.collect()
    assert reference() is None
    assert gc.get_freeze_count() == 0
