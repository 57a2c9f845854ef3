"""Converts pyautogui's key names, and characters, to X keysyms."""

from __future__ import annotations

from collections.abc import Container, Sequence

_RETURN, _TAB, _BACKSPACE, _ESCAPE, _DELETE = 0xFF0D, 0xFF09, 0xFF08, 0xFF1B, 0xFFFF
SHIFT, _CONTROL, _ALT, _SUPER = 0xFFE1, 0xFFE3, 0xFFE9, 0xFFEB  # the left ones

_KEYSYMS = {
    "accept": _RETURN, "enter": _RETURN, "return": _RETURN, "tab": _TAB, "backspace": _BACKSPACE,
    "esc": _ESCAPE, "escape": _ESCAPE, "del": _DELETE, "delete": _DELETE, "space": 0x20,
    "shift": SHIFT, "shiftleft": SHIFT, "shiftright": 0xFFE2,
    "ctrl": _CONTROL, "ctrlleft": _CONTROL, "ctrlright": 0xFFE4,
    "alt": _ALT, "altleft": _ALT, "altright": 0xFFEA,
    "option": _ALT, "optionleft": _ALT, "optionright": 0xFFEA,
    "win": _SUPER, "winleft": _SUPER, "winright": 0xFFEC, "super": _SUPER, "command": _SUPER,
    "home": 0xFF50, "left": 0xFF51, "up": 0xFF52, "right": 0xFF53, "down": 0xFF54, "end": 0xFF57,
    "pageup": 0xFF55, "pgup": 0xFF55, "pagedown": 0xFF56, "pgdn": 0xFF56, "insert": 0xFF63,
    "apps": 0xFF67, "menu": 0xFF67, "help": 0xFF6A, "select": 0xFF60, "execute": 0xFF62, "clear": 0xFF0B,
    "print": 0xFF61, "printscreen": 0xFF61, "prntscrn": 0xFF61, "prtsc": 0xFF61, "prtscr": 0xFF61,
    "pause": 0xFF13, "scrolllock": 0xFF14, "capslock": 0xFFE5, "numlock": 0xFF7F, "modechange": 0xFF7E,
    "convert": 0xFF23, "nonconvert": 0xFF22,
    "multiply": 0xFFAA, "add": 0xFFAB, "separator": 0xFFAC, "subtract": 0xFFAD, "decimal": 0xFFAE,
    "divide": 0xFFAF,
    "browserback": 0x1008FF26, "browserforward": 0x1008FF27, "browserhome": 0x1008FF18,
    "browserrefresh": 0x1008FF29, "browsersearch": 0x1008FF1B, "browserstop": 0x1008FF28,
    "volumedown": 0x1008FF11, "volumemute": 0x1008FF12, "volumeup": 0x1008FF13,
    "playpause": 0x1008FF14, "stop": 0x1008FF15, "prevtrack": 0x1008FF16, "nexttrack": 0x1008FF17,
    **{f"f{number}": 0xFFBD + number for number in range(1, 25)},
    **{f"num{digit}": 0xFFB0 + digit for digit in range(10)},
}  # fmt: skip
_CONTROL_CHARACTERS = {
    "\n": _RETURN, "\r": _RETURN, "\t": _TAB, "\b": _BACKSPACE, "\x1b": _ESCAPE, "\x7f": _DELETE
}  # fmt: skip
_UNICODE_OFFSET = 0x01000000  # the keysym of a character beyond Latin-1 is this plus its code point


def keysym_of_key(name: str) -> int | None:
    """The keysym of a key name or a single character. None if pyautogui does not know the name either."""
    return keysym_of_character(name) if len(name) == 1 else _KEYSYMS.get(name)


def keysym_of_character(character: str) -> int | None:
    """The keysym of a character. None for control characters without a key.

    >>> hex(keysym_of_character("a")), hex(keysym_of_character("€"))
    ('0x61', '0x10020ac')
    """
    if character in _CONTROL_CHARACTERS:
        return _CONTROL_CHARACTERS[character]
    code = ord(character)
    if code < 0x20 or 0x7F <= code < 0xA0:
        return None
    return code if code < 0x100 else _UNICODE_OFFSET + code


def typeable_prefix(keysyms: Sequence[int], layout: Container[int], spare_keys: int) -> tuple[int, list[int]]:
    """How many of the first keysyms fit the layout plus the spare keys, and which of them need a spare key.

    >>> typeable_prefix([97, 8364, 98, 8364, 937, 99], {97, 98, 99}, 1)
    (4, [8364])
    """
    missing: list[int] = []
    for index, keysym in enumerate(keysyms):
        if keysym not in layout and keysym not in missing:
            if len(missing) == spare_keys:
                return index, missing
            missing.append(keysym)
    return len(keysyms), missing
