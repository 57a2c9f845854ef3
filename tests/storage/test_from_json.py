"""The conversion of parsed JSON names the place of every wrong value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest

from arpo.storage.from_json import from_json


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    number: float
    colour: Colour = Colour.RED


@dataclass(frozen=True, kw_only=True)
class Outer:
    name: str
    flag: bool
    count: int
    inner: tuple[Inner, ...]
    pair: tuple[str, int] = ("", 0)
    scores: dict[str, tuple[float, ...]] | None = None


GOOD: dict[str, Any] = {
    "name": "a",
    "flag": True,
    "count": 3,
    "inner": [{"number": 1, "colour": "red"}, {"number": 0.5}],
    "pair": ["b", 2],
    "scores": {"x": [0.5, 1], "y": []},
}


def test_a_value_becomes_its_type() -> None:
    assert from_json(GOOD, Outer) == Outer(
        name="a",
        flag=True,
        count=3,
        inner=(Inner(number=1), Inner(number=0.5)),
        pair=("b", 2),
        scores={"x": (0.5, 1), "y": ()},
    )


def test_missing_keys_have_their_defaults_and_other_keys_are_ignored() -> None:
    given = {"name": "a", "flag": False, "count": 0, "inner": [], "scores": None, "later": 1}
    assert from_json(given, Outer) == Outer(name="a", flag=False, count=0, inner=())


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"name": 3}, "name: "),
        ({"flag": 1}, "flag: "),
        ({"count": True}, "count: "),
        ({"count": 1.0}, "count: "),
        ({"count": 1 << 63}, "count: "),
        ({"inner": {}}, "inner: "),
        ({"inner": [GOOD["inner"][0], {}]}, r"inner\[1\]: no 'number'"),
        ({"inner": [{"number": "1"}]}, r"inner\[0\]\.number: "),
        ({"inner": [{"number": 1, "colour": "blue"}]}, r"inner\[0\]\.colour: .*blue"),
        ({"inner": [{"number": 1, "colour": []}]}, r"inner\[0\]\.colour: "),
        ({"pair": ["b"]}, "pair: "),
        ({"scores": {"x": [None]}}, r"scores\['x'\]\[0\]: "),
        ({"scores": []}, "scores: "),
    ],
    ids=str,
)
def test_a_wrong_value_is_named_with_its_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError, match=f"^{place}"):
        from_json(GOOD | change, Outer)


def test_a_reader_converts_its_type_and_its_errors_have_the_place() -> None:
    assert from_json({"number": "7"}, Inner, {float: float}) == Inner(number=7.0)
    with pytest.raises(ValueError, match="number: could not convert"):
        from_json({"number": "seven"}, Inner, {float: float})


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([["a", 1.0], ["b", "2"]], r"\[1\]\[1\]: must be a number, not '2'"),
        ([["a", 1.0], ["b"]], r"\[1\]: must be a list of 2"),
        ([["a", 1.0], "b2"], r"\[1\]: must be a list"),
    ],
)
def test_long_lists_of_rows_are_checked_as_short_ones(rows: Any, reason: str) -> None:
    assert from_json([["a", 1.0], ["b", 2]], tuple[tuple[str, float], ...]) == (("a", 1.0), ("b", 2))
    with pytest.raises(ValueError, match=reason):
        from_json(rows, tuple[tuple[str, float], ...])
