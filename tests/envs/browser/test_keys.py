"""Keys of a US keyboard as the DevTools protocol names them."""

import pytest

from arpo.envs.browser.keys import MODIFIERS, key
from arpo.keyboard import _NAMES

NOT_OF_A_PAGE = {"fn", "volumeup", "volumedown", "volumemute", "playpause"}


def test_every_printable_character_of_ascii_has_a_key():
    for number in range(32, 127):
        found = key(chr(number))
        assert found is not None
        assert found.text == chr(number)


def test_every_named_key_of_a_page_is_known():
    assert {name for name in _NAMES if key(name) is None} == NOT_OF_A_PAGE


@pytest.mark.parametrize(
    ("name", "code", "number"),
    [("a", "KeyA", 65), ("Z", "KeyZ", 90), ("7", "Digit7", 55), ("&", "Digit7", 55), ("?", "Slash", 191)],
)
def test_a_character_has_the_place_of_its_key(name, code, number):
    found = key(name)
    assert found is not None
    assert (found.code, found.number) == (code, number)


def test_other_scripts_have_no_key():
    assert key("é") is None
    assert key("中") is None


def test_a_key_with_ctrl_types_nothing():
    found = key("a")
    assert found is not None
    assert found.event("keyDown", MODIFIERS["ctrl"])["type"] == "rawKeyDown"
    assert "text" not in found.event("keyDown", MODIFIERS["ctrl"])
    assert found.event("keyDown", MODIFIERS["shift"])["text"] == "a"
    assert "text" not in found.event("keyUp")
