"""Key names: one canonical spelling per key, as in pyautogui.

Letters are lower case: "ctrl C" means the keys ctrl and c, without shift.
"""

from __future__ import annotations

import re
from collections import deque

_NAMES = frozenset(
    (
        "ctrl", "alt", "shift", "win", "fn", "enter", "tab", "esc", "space", "backspace", "delete", "insert",
        "home", "end", "pageup", "pagedown", "left", "right", "up", "down", "capslock", "numlock",
        "scrolllock", "printscreen", "pause", "menu", "volumeup", "volumedown", "volumemute", "playpause",
        *(f"f{number}" for number in range(1, 25)),
    )
)  # fmt: skip

_ALIASES = {
    **dict.fromkeys(("control", "ctl", "ctrlleft", "ctrlright"), "ctrl"),
    **dict.fromkeys(("option", "opt", "altleft", "altright", "altgr"), "alt"),
    **dict.fromkeys(("shiftleft", "shiftright"), "shift"),
    **dict.fromkeys(("cmd", "command", "meta", "super", "windows", "winleft", "winright"), "win"),
    **dict.fromkeys(("return", "kpenter"), "enter"),
    **dict.fromkeys(("pgup", "prior"), "pageup"),
    **dict.fromkeys(("pgdn", "pgdown", "next"), "pagedown"),
    **dict.fromkeys(("prtsc", "prtscr", "prtscn"), "printscreen"),
    **{f"arrow{side}": side for side in ("left", "right", "up", "down")},
    **{f"{side}arrow": side for side in ("left", "right", "up", "down")},
    "spacebar": "space",
    "escape": "esc",
    "del": "delete",
    "ins": "insert",
    "plus": "+",
    "minus": "-",
}

_WORD = re.compile(r"[^\s+]+|\+")
_FILLERS = ("arrow", "key")


def canonical_keys(written: str) -> tuple[str, ...]:
    """Canonical names of keys pressed together. Spaces, "+", "-" and "_" may separate them.

    Raises ValueError for an unknown key and for an empty text.

    >>> canonical_keys("Ctrl+Shift+T"), canonical_keys("ctrl page down"), canonical_keys("ctrl +")
    (('ctrl', 'shift', 't'), ('ctrl', 'pagedown'), ('ctrl', '+'))
    """
    if written.isspace():
        return ("enter",) if "\n" in written else ("space",)
    words = deque(_words(written.lower()))
    keys: list[str] = []
    while words:
        word = words.popleft()
        key = _key(word)
        if key is None and words:
            key = _key(word + words[0])
            if key is not None:
                words.popleft()
        if key is None:
            raise ValueError(f"unknown key {word[:40]!r}")
        keys.append(key)
    if not keys:
        raise ValueError("no key")
    return tuple(keys)


def _words(written: str) -> list[str]:
    """Split at spaces, "+", "-" and "_". A final "+" is the key "+"."""
    words: list[str] = []
    found = _WORD.findall(written)
    for index, word in enumerate(found):
        if word == "+" and index < len(found) - 1:
            continue
        pieces = [word] if _key(word) else re.split(r"[-_]", word)
        words += [piece for piece in pieces if piece not in _FILLERS]
    return words


def _key(word: str) -> str | None:
    if word in _NAMES or (len(word) == 1 and word.isprintable()):
        return word
    return _ALIASES.get(word)
