"""Mouse and keyboard: carries out acts through the X server's test extension, in this process.

Text is typed as it is written: a character that no key of the layout bears is put on a spare key for as long
as it is needed. After an act that a program may answer, the next one waits until the screen has come to rest,
so that a text goes to the window that a click has brought up. Clicks of two programs at one place are never
one double click: the second waits until the first can no longer be part of it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from Xlib import X, display
from Xlib.ext import xtest

from arpo.envs.osworld.guest.acts import (
    Act,
    Chord,
    Click,
    Copy,
    Hold,
    KeyDown,
    KeyUp,
    Move,
    Release,
    Sleep,
    Tap,
    Wheel,
    Write,
)
from arpo.envs.osworld.guest.keys import SHIFT, reach, symbol_of_character, symbol_of_key
from arpo.envs.osworld.guest.screen import Screen

_DOUBLE_CLICK_SECONDS = 0.5
_DOUBLE_CLICK_PIXELS = 10
_GLIDE_STEPS = 20  # positions that a drag passes through, at least
_STEP_SECONDS = 0.01
_KEY_SECONDS = 0.002
_LAYOUT_SECONDS = 0.05
_UNSEEN = (Move, Hold, KeyDown, KeyUp, Copy, Sleep)  # acts that the next one need not wait for
_WHEEL = {(False, True): 4, (False, False): 5, (True, False): 6, (True, True): 7}  # (horizontal, positive)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clicked:
    x: int
    y: int
    time: float


class Input:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._display = display.Display()
        self._keyboard = _Keyboard(self._display, self._outwait_layout)
        self._lock = threading.Lock()
        self._held: set[int] = set()
        self._clicked = self._clicked_before = _Clicked(x=0, y=0, time=0.0)

    def carry_out(self, acts: Sequence[Act]) -> list[str]:
        """Do all acts in order; returns what could not be done, in words."""
        with self._lock:
            self._clicked_before = self._clicked
            complaints: list[str] = []
            for act in acts:
                if not isinstance(act, Sleep):
                    self._screen.rest()
                complaints += self._do(act)
                if not isinstance(act, _UNSEEN):
                    self._screen.touch()
            self._display.sync()
            if not all(isinstance(act, Sleep) for act in acts):
                self._screen.touch()
            return complaints

    def _outwait_layout(self) -> None:
        """Programs read a changed layout when they get to it, and must not find it changed again by then."""
        self._display.sync()
        time.sleep(_LAYOUT_SECONDS)
        self._screen.touch()
        self._screen.rest()

    def _do(self, act: Act) -> list[str]:
        match act:
            case Move():
                self._move(act)
            case Click(button=button, times=times, interval=interval):
                self._click(button, times, interval)
            case Hold(button=button):
                self._button(button, True)
            case Release(button=button):
                self._button(button, False)
            case Wheel(notches=notches, horizontal=horizontal):
                for _ in range(abs(notches)):
                    self._press_and_release(_WHEEL[horizontal, notches > 0])
            case KeyDown(key=key):
                return self._hold_keys((key,))
            case KeyUp(key=key):
                self._release_keys((key,))
            case Tap():
                return self._tap(act)
            case Chord(keys=keys):
                complaints = self._hold_keys(keys)
                self._release_keys(keys)
                return complaints
            case Write(text=text, interval=interval):
                return self._keyboard.write(text, max(interval, _KEY_SECONDS))
            case Copy(text=text):
                subprocess.run(["xclip", "-selection", "clipboard", "-in"], input=text.encode(), check=False)
            case Sleep(seconds=seconds):
                time.sleep(seconds)
        return []

    def _move(self, act: Move) -> None:
        at = self._display.screen().root.query_pointer()
        x0, y0 = at.root_x, at.root_y
        if act.relative:
            x1, y1 = x0 + (act.x or 0), y0 + (act.y or 0)
        else:
            x1, y1 = x0 if act.x is None else act.x, y0 if act.y is None else act.y
        gliding = bool(self._held) or act.seconds > 0
        steps = max(_GLIDE_STEPS, int(act.seconds / _STEP_SECONDS)) if gliding else 1
        for step in range(1, steps + 1):
            x = min(max(0, round(x0 + (x1 - x0) * step / steps)), self._screen.width - 1)
            y = min(max(0, round(y0 + (y1 - y0) * step / steps)), self._screen.height - 1)
            xtest.fake_input(self._display, X.MotionNotify, x=x, y=y)
            self._display.flush()
            if gliding:
                time.sleep(max(act.seconds / steps, _STEP_SECONDS))

    def _click(self, button: int, times: int, interval: float) -> None:
        at = self._display.screen().root.query_pointer()
        before = self._clicked_before
        if max(abs(before.x - at.root_x), abs(before.y - at.root_y)) <= _DOUBLE_CLICK_PIXELS:
            time.sleep(max(0.0, before.time + _DOUBLE_CLICK_SECONDS - time.monotonic()))
        for count in range(times):
            if count:
                time.sleep(interval)
            self._press_and_release(button)
        self._clicked = _Clicked(x=at.root_x, y=at.root_y, time=time.monotonic())

    def _press_and_release(self, button: int) -> None:
        self._button(button, True)
        self._button(button, False)

    def _button(self, button: int, down: bool) -> None:
        xtest.fake_input(self._display, X.ButtonPress if down else X.ButtonRelease, button)
        self._display.flush()
        (self._held.add if down else self._held.discard)(button)

    def _tap(self, act: Tap) -> list[str]:
        complaints: list[str] = []
        for _ in range(act.times):
            for key in act.keys:
                complaints += self._hold_keys((key,))
                self._release_keys((key,))
                time.sleep(max(act.interval, _KEY_SECONDS))
        return complaints

    def _hold_keys(self, keys: Sequence[str]) -> list[str]:
        return [f"unknown key {key!r}, passed over" for key in keys if not self._keyboard.key(key, True)]

    def _release_keys(self, keys: Sequence[str]) -> None:
        for key in reversed(keys):
            self._keyboard.key(key, False)


class _Keyboard:
    """Keys by symbol, on the layout that the X server has, and on spare keys for what it lacks."""

    def __init__(self, connection: display.Display, outwait_layout: Callable[[], None]) -> None:
        self._display = connection
        self._outwait_layout = outwait_layout
        low, high = connection.display.info.min_keycode, connection.display.info.max_keycode
        rows = connection.get_keyboard_mapping(low, high - low + 1)
        self._codes: dict[int, tuple[int, bool]] = {}
        for shifted in (False, True):
            for code, row in enumerate(rows, low):
                if row[shifted]:
                    self._codes.setdefault(row[shifted], (code, shifted))
        self._levels = len(rows[0])
        self._spare = [code for code, row in enumerate(rows, low) if not any(row) and code > low]
        self._borrowed: dict[int, int] = {}  # symbol to spare key
        self._shift = self._codes[SHIFT][0]

    def key(self, name: str, down: bool) -> bool:
        """Press or release one key; a capital letter brings its shift along. False for an unknown name."""
        symbol = symbol_of_key(name)
        if symbol is None:
            return False
        self._borrow([symbol])
        code, shifted = self._place(symbol)
        codes = [self._shift, code] if shifted else [code]
        for each in codes if down else reversed(codes):
            self._send(each, down)
        return True

    def write(self, text: str, interval: float) -> list[str]:
        symbols = {character: symbol_of_character(character) for character in text}
        lacking = [character for character, symbol in symbols.items() if symbol is None]
        known = [symbol for character in text if (symbol := symbols[character]) is not None]
        while known:
            count = self._borrow(known)
            for symbol in known[:count]:
                self._type(symbol)
                time.sleep(interval)
            known = known[count:]
        return [f"no key for the character {ord(character):#04x}, passed over" for character in lacking]

    def _type(self, symbol: int) -> None:
        code, shifted = self._place(symbol)
        if shifted:
            self._send(self._shift, True)
        self._send(code, True)
        self._send(code, False)
        if shifted:
            self._send(self._shift, False)

    def _send(self, code: int, down: bool) -> None:
        xtest.fake_input(self._display, X.KeyPress if down else X.KeyRelease, code)
        self._display.flush()

    def _place(self, symbol: int) -> tuple[int, bool]:
        return self._codes.get(symbol) or (self._borrowed[symbol], False)

    def _borrow(self, symbols: Sequence[int]) -> int:
        """Put missing symbols on spare keys; returns how many of the given, from the first, can be typed."""
        count, lacking = reach(symbols, self._codes.keys(), len(self._spare))
        fresh = [symbol for symbol in lacking if symbol not in self._borrowed]
        if not fresh:
            return count
        if len(self._borrowed) + len(fresh) > len(self._spare):
            self._outwait_layout()
            self._borrowed = {symbol: code for symbol, code in self._borrowed.items() if symbol in lacking}
        free = [code for code in self._spare if code not in self._borrowed.values()]
        for symbol, code in zip(fresh, free, strict=False):
            self._display.change_keyboard_mapping(code, [[symbol] * self._levels])
            self._borrowed[symbol] = code
        self._outwait_layout()
        return count
