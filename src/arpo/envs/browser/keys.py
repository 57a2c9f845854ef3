"""Keys as Chromium's DevTools protocol names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MODIFIERS = {"alt": 1, "ctrl": 2, "win": 4, "shift": 8}  # bits of `modifiers`

_NAMED = {  # canonical name: key, code, Windows virtual key code
    "enter": ("Enter", "Enter", 13),
    "tab": ("Tab", "Tab", 9),
    "esc": ("Escape", "Escape", 27),
    "space": (" ", "Space", 32),
    "backspace": ("Backspace", "Backspace", 8),
    "delete": ("Delete", "Delete", 46),
    "insert": ("Insert", "Insert", 45),
    "home": ("Home", "Home", 36),
    "end": ("End", "End", 35),
    "pageup": ("PageUp", "PageUp", 33),
    "pagedown": ("PageDown", "PageDown", 34),
    "left": ("ArrowLeft", "ArrowLeft", 37),
    "up": ("ArrowUp", "ArrowUp", 38),
    "right": ("ArrowRight", "ArrowRight", 39),
    "down": ("ArrowDown", "ArrowDown", 40),
    "ctrl": ("Control", "ControlLeft", 17),
    "alt": ("Alt", "AltLeft", 18),
    "shift": ("Shift", "ShiftLeft", 16),
    "win": ("Meta", "MetaLeft", 91),
    "capslock": ("CapsLock", "CapsLock", 20),
    "numlock": ("NumLock", "NumLock", 144),
    "scrolllock": ("ScrollLock", "ScrollLock", 145),
    "pause": ("Pause", "Pause", 19),
    "printscreen": ("PrintScreen", "PrintScreen", 44),
    "menu": ("ContextMenu", "ContextMenu", 93),
    **{f"f{number}": (f"F{number}", f"F{number}", 111 + number) for number in range(1, 25)},
}
_TEXTS = {"enter": "\r", "tab": "\t", "space": " "}
# Keys of a US keyboard that type a symbol: code, Windows virtual key code, without and with shift.
_SYMBOLS = (
    ("Backquote", 192, "`~"), ("Minus", 189, "-_"), ("Equal", 187, "=+"), ("BracketLeft", 219, "[{"),
    ("BracketRight", 221, "]}"), ("Backslash", 220, "\\|"), ("Semicolon", 186, ";:"), ("Quote", 222, "'\""),
    ("Comma", 188, ",<"), ("Period", 190, ".>"), ("Slash", 191, "/?"),
)  # fmt: skip
_DIGITS = ")!@#$%^&*("
_PLACES: dict[str, tuple[str, int]] = {
    **{symbol: (code, number) for code, number, symbols in _SYMBOLS for symbol in symbols},
    **{symbol: (f"Digit{number}", 48 + number) for number, symbol in enumerate(_DIGITS)},
    **{str(number): (f"Digit{number}", 48 + number) for number in range(10)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    key: str
    code: str
    number: int  # Windows virtual key code
    text: str  # what it types

    def event(self, kind: str, modifiers: int = 0) -> dict[str, Any]:
        """Parameters of Input.dispatchKeyEvent. `kind` is keyDown or keyUp.

        With ctrl, alt or win a key types nothing: it is a command.
        """
        command = modifiers & ~MODIFIERS["shift"]
        text = self.text if kind == "keyDown" and not command else ""
        typed = {"text": text, "unmodifiedText": text} if text else {}
        return {
            "type": "rawKeyDown" if kind == "keyDown" and not text else kind,
            "modifiers": modifiers,
            "key": self.key,
            "code": self.code,
            "windowsVirtualKeyCode": self.number,
            **typed,
        }


def key(name: str) -> Key | None:
    """The key with a canonical name or of a character; None if no key of a US keyboard types it.

    >>> key("pagedown").code, key("A").code, key("é")
    ('PageDown', 'KeyA', None)
    """
    if name in _NAMED:
        value, code, number = _NAMED[name]
        return Key(key=value, code=code, number=number, text=_TEXTS.get(name, ""))
    if len(name) != 1 or not name.isascii() or not name.isprintable():
        return None
    if name == " ":
        return key("space")
    code, number = _PLACES.get(name) or (f"Key{name.upper()}", ord(name.upper()))
    return Key(key=name, code=code, number=number, text=name)
