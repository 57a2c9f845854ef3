"""The difference of two JSON values: which paths have another value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

MISSING = None  # the value of a path that one side does not have


def differences(before: Any, after: Any, ignore: Sequence[str] = ()) -> dict[str, Any]:
    """New values by path, for all paths whose value is another one; None for a removed path.

    A path that matches a pattern of `ignore` is left out.

    >>> differences({"cart": [], "clock": 1}, {"cart": [{"item": "tea"}], "clock": 2}, ["clock"])
    {'cart.0.item': 'tea'}
    """
    old, new = dict(_leaves(before)), dict(_leaves(after))
    paths = sorted(old.keys() | new.keys())
    return {
        path: new.get(path, MISSING)
        for path in paths
        if (path not in old or path not in new or old[path] != new[path])
        and not any(fnmatchcase(path, pattern) for pattern in ignore)
    }


def value_at(value: Any, path: str) -> Any:
    """The value at a path such as "orders.0.item"; None if there is none."""
    for name in path.split(".") if path else ():
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return value


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Paths and values of everything that is no object or list. Empty ones have no paths."""
    if isinstance(value, Mapping):
        items: Sequence[tuple[str, Any]] = [(str(key), content) for key, content in value.items()]
    elif isinstance(value, list):
        items = [(str(number), content) for number, content in enumerate(value)]
    else:
        yield path, value
        return
    for name, content in items:
        yield from _leaves(content, f"{path}.{name}" if path else name)
