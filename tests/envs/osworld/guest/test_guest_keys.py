"""X keysyms of key names and characters, and the part of a text that the spare keys can type."""

import string

import pytest

from arpo.envs.osworld.guest.keys import keysym_of_character, keysym_of_key, typeable_prefix
from arpo.keyboard import canonical_keys


def test_the_keysym_of_printable_ascii_is_its_code():
    printable = string.digits + string.ascii_letters + string.punctuation + " "
    assert [keysym_of_character(character) for character in printable] == [ord(each) for each in printable]


@pytest.mark.parametrize(
    ("character", "keysym"),
    [
        ("é", 0xE9),
        ("€", 0x010020AC),
        ("漢", 0x01006F22),
        ("\U0001f642", 0x0101F642),
        ("\n", 0xFF0D),
        ("\t", 0xFF09),
    ],
)
def test_other_characters(character, keysym):
    assert keysym_of_character(character) == keysym


@pytest.mark.parametrize("character", ["\0", "\x07", "\x85"])
def test_control_characters_have_no_key(character):
    assert keysym_of_character(character) is None


@pytest.mark.parametrize(
    ("name", "keysym"),
    [
        ("enter", 0xFF0D),
        ("ctrl", 0xFFE3),
        ("f1", 0xFFBE),
        ("f12", 0xFFC9),
        ("num0", 0xFFB0),
        ("A", 0x41),
        ("<", 0x3C),
    ],
)
def test_keys_by_name(name, keysym):
    assert keysym_of_key(name) == keysym


def test_an_unknown_name_has_no_keysym():
    assert keysym_of_key("hyper") is None


def test_every_key_of_the_action_language_has_a_keysym():
    written = (
        "ctrl alt shift win enter tab esc space backspace delete insert home end pageup pagedown left right"
    )
    written += (
        " up down capslock numlock scrolllock printscreen pause menu volumeup volumedown playpause f1 f24"
    )
    assert [key for key in canonical_keys(written) if keysym_of_key(key) is None] == []


@pytest.mark.parametrize(
    ("text", "spare", "count", "missing"),
    [
        ("abc", 0, 3, ""),
        ("aéb", 1, 3, "é"),
        ("aébé€c", 1, 4, "é"),
        ("aébé€c", 2, 6, "é€"),
        ("é", 0, 0, ""),
    ],
)
def test_a_text_is_typed_as_far_as_spare_keys_allow(text, spare, count, missing):
    layout = {ord(character) for character in "abc"}
    assert typeable_prefix([ord(each) for each in text], layout, spare) == (
        count,
        [ord(each) for each in missing],
    )
