"""Differences of an application's state, by path."""

import pytest

from arpo.envs.browser.state import differences, value_at

BEFORE = {"cart": {"tea": 1}, "orders": [], "clock": {"now": 1}}


@pytest.mark.parametrize(
    ("after", "changes"),
    [
        (BEFORE, {}),
        ({**BEFORE, "cart": {"tea": 2}}, {"cart.tea": 2}),
        ({**BEFORE, "cart": {}}, {"cart.tea": None}),
        ({**BEFORE, "orders": [{"name": "Mia"}, 3]}, {"orders.0.name": "Mia", "orders.1": 3}),
        ({**BEFORE, "clock": {"now": 2}}, {}),
        ({**BEFORE, "cart": [1]}, {"cart.0": 1, "cart.tea": None}),
    ],
)
def test_differences(after, changes):
    assert differences(BEFORE, after, ignore=["clock.*"]) == changes


def test_a_path_that_becomes_null_is_a_change():
    assert differences({"a": 1}, {"a": None}) == {"a": None}
    assert differences({}, {"a": None}) == {"a": None}


@pytest.mark.parametrize(
    ("path", "value"), [("", [{"a": 3}]), ("0.a", 3), ("1.a", None), ("0.b", None), ("x", None)]
)
def test_value_at(path, value):
    assert value_at([{"a": 3}], path) == value
