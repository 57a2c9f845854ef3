"""Key names: every accepted spelling has one canonical name; unknown keys raise ValueError."""

import pytest

from arpo.keyboard import canonical_keys


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ("page down", ("pagedown",)),
        ("pagedown", ("pagedown",)),
        ("Page_Down", ("pagedown",)),
        ("ctrl page down", ("ctrl", "pagedown")),
        ("arrowleft", ("left",)),
        ("arrow left", ("left",)),
        ("ctrl arrowleft", ("ctrl", "left")),
        ("left arrow", ("left",)),
        ("shift left", ("shift", "left")),
        ("ctrl+shift+t", ("ctrl", "shift", "t")),
        ("Ctrl + C", ("ctrl", "c")),
        ("ctrl-c", ("ctrl", "c")),
        ("ctrl +", ("ctrl", "+")),
        ("ctrl++", ("ctrl", "+")),
        ("ctrl -", ("ctrl", "-")),
        ("return", ("enter",)),
        ("cmd", ("win",)),
        ("Escape", ("esc",)),
        ("del", ("delete",)),
        ("caps lock", ("capslock",)),
        ("F5", ("f5",)),
        (" ", ("space",)),
        ("\n", ("enter",)),
    ],
)
def test_every_spelling_has_one_name(written, keys):
    assert canonical_keys(written) == keys


@pytest.mark.parametrize("written", ["", "bogus", "ctrl bogus", "f99", "page", "ctrl--"])
def test_unknown_keys_are_refused(written):
    with pytest.raises(ValueError, match="key"):
        canonical_keys(written)
