"""Converts parsed JSON to typed values. It checks every type, because a file may be damaged."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from reprlib import repr as shortened
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Readers = Mapping[Any, Callable[[Any], Any]]  # by type

_T = TypeVar("_T")
_PLAIN = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}
INTEGER_LIMIT = 1 << 63  # SQLite, NumPy and torch take no larger ones


def from_json(value: Any, kind: type[_T], readers: Readers | None = None, place: str = "") -> _T:
    """Convert to a dataclass, an enum, a plain type, or to tuples and mappings of these.

    `readers` convert types with a form of their own, such as a screenshot, which is stored by its name. Keys
    that a dataclass does not have are ignored. Raises ValueError with the place of a wrong value.

    >>> from_json([{"x": 3, "y": 4}, {"x": 3, "y": "4"}], tuple[Point, ...])
    ValueError: [1].y: must be a number, not '4'
    """
    converted: _T = _convert(value, kind, readers or {}, place)
    return converted


def _convert(value: Any, hint: Any, readers: Readers, place: str) -> Any:
    if hint in readers:
        return _call(readers[hint], value, place)
    if hint in _PLAIN:
        return _plain(value, hint, place)
    if hint is Any:
        return value
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        assert len(inner) == 2 and inner[1] is NoneType, hint
        return None if value is None else _convert(value, inner[0], readers, place)
    if origin is tuple:
        return _tuple(value, inner, readers, place)
    if origin is not None and issubclass(origin, Mapping):
        _require(isinstance(value, dict), "an object", value, place)
        return {key: _convert(one, inner[1], readers, f"{place}[{key!r}]") for key, one in value.items()}
    if is_dataclass(hint):
        return _dataclass(value, hint, readers, place)
    assert issubclass(hint, Enum), hint
    return _call(hint, value, place)


def _plain(value: Any, hint: Any, place: str) -> Any:
    kinds = (int, float) if hint is float else (hint,)
    fits = type(value) in kinds and (type(value) is not int or abs(value) < INTEGER_LIMIT)
    _require(fits, _PLAIN[hint], value, place)
    return value


def _tuple(value: Any, inner: tuple[Any, ...], readers: Readers, place: str) -> Any:
    _require(isinstance(value, list), "a list", value, place)
    if inner[-1] is not Ellipsis:
        _require(len(value) == len(inner), f"a list of {len(inner)}", value, place)
    elif inner[0] in (str, float) and inner[0] not in readers and set(map(type, value)) <= {inner[0]}:
        return tuple(value)  # long lists
    elif get_origin(inner[0]) is tuple and not readers and _are_rows(value, get_args(inner[0])):
        return tuple(map(tuple, value))  # long lists of rows
    hints = inner if inner[-1] is not Ellipsis else inner[:1] * len(value)
    return tuple(
        _convert(one, hint, readers, f"{place}[{index}]")
        for index, (one, hint) in enumerate(zip(value, hints, strict=True))
    )


def _are_rows(value: list[Any], columns: tuple[Any, ...]) -> bool:
    """Whether all entries are lists with values of exactly these plain types."""
    if not set(columns) <= {str, float} or not all(type(row) is list for row in value):
        return False
    if not value or {len(row) for row in value} != {len(columns)}:
        return False
    return all(
        set(map(type, found)) == {kind} for found, kind in zip(zip(*value, strict=True), columns, strict=True)
    )


def _dataclass(value: Any, kind: Any, readers: Readers, place: str) -> Any:
    _require(isinstance(value, dict), "an object", value, place)
    given = {}
    for field, hint in _fields(kind):
        if field.name in value:
            inner = f"{place}.{field.name}" if place else field.name
            given[field.name] = _convert(value[field.name], hint, readers, inner)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{place}: no {field.name!r}" if place else f"no {field.name!r}")
    return _call(lambda _: kind(**given), value, place)


@cache
def _fields(kind: Hashable) -> tuple[tuple[Field[Any], Any], ...]:
    hints = get_type_hints(kind)
    return tuple((field, hints[field.name]) for field in fields(kind))  # type: ignore[arg-type]


def _call(convert: Callable[[Any], Any], value: Any, place: str) -> Any:
    """Add the place to a ValueError. A UserError has its own."""
    try:
        return convert(value)
    except ValueError as error:
        if type(error) is not ValueError or not place:
            raise
        raise ValueError(f"{place}: {error}") from None


def _require(condition: bool, wanted: str, value: Any, place: str) -> None:
    if not condition:
        raise ValueError(f"{place or 'it'}: must be {wanted}, not {shortened(value)}")
