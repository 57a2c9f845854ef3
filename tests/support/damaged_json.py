"""Damaged copies of a JSON value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

WRONG: tuple[Any, ...] = (None, True, "x", -1, 1.5, float("inf"), 10**400, [], {}, [[]], [{}], [None])


def damaged(value: Any) -> Iterator[Any]:
    """Copies with one key or element less, and with other values in the place of each value."""
    yield from WRONG
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            shorter = value.copy()
            del shorter[key]
            yield shorter
            for other in damaged(value[key]):
                changed = value.copy()
                changed[key] = other
                yield changed
