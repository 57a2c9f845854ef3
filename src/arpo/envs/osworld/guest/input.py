"""Performs mouse and keyboard events through the X server's XTEST extension, in this process.

- A character without a key in the layout is mapped to a spare key while it is needed.
- After a click, a scroll or typed text, the next event waits until the screen is stable. A text then goes to
  the window that the previous click opened.
- Clicks of two pyautogui programs at the same position never form a double click: the second click waits.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from Xlib import X, display
from Xlib.ext import xtest

from arpo.envs.osworld.guest.keys import SHIFT, keysym_of_character, keysym_of_key, typeable_prefix
from arpo.envs.osworld.guest.pyautogui_parser import (
    ClickButton,
    InputEvent,
    KeyChord,
    MovePointer,
    PressKeys,
    SetButton,
    SetClipboard,
    SetKey,
    Sleep,
    TurnWheel,
    TypeText,
)
from arpo.envs.osworld.guest.screen import Screen

_DOUBLE_CLICK_SECONDS = 0.5
_DOUBLE_CLICK_PIXELS = 10
_MIN_GLIDE_STEPS = 20  # minimum number of positions on the path of a drag
_STEP_SECONDS = 0.01
_KEY_SECONDS = 0.002
_LAYOUT_SECONDS = 0.05
_NO_WAIT_AFTER = (MovePointer, SetKey, SetClipboard, Sleep)
# (horizontal, positive) to X button
_WHEEL_BUTTONS = {(False, True): 4, (False, False): 5, (True, False): 6, (True, True): 7}


@dataclass(frozen=True, slots=True, kw_only=True)
class _LastClick:
    x: int
    y: int
    time: float


class InputController:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._display = display.Display()
        self._keyboard = _Keyboard(self._display, self._wait_for_layout)
        self._lock = threading.Lock()
        self._held_buttons: set[int] = set()
        self._last_click = self._click_of_last_program = _LastClick(x=0, y=0, time=0.0)

    def perform(self, events: Sequence[InputEvent]) -> list[str]:
        """Performs the events in order. Returns one warning for each skipped key or character."""
        with self._lock:
            self._click_of_last_program = self._last_click
            warnings: list[str] = []
            for event in events:
                if not isinstance(event, Sleep):
                    self._screen.wait_until_stable()
                warnings += self._perform_one(event)
                pressed = isinstance(event, SetButton) and event.down
                if not pressed and not isinstance(event, _NO_WAIT_AFTER):
                    self._screen.expect_change()
            self._display.sync()
            if not all(isinstance(event, Sleep) for event in events):
                self._screen.expect_change()
            return warnings

    def _wait_for_layout(self) -> None:
        """Gives programs the time to read the current layout before it changes again."""
        self._display.sync()
        time.sleep(_LAYOUT_SECONDS)
        self._screen.expect_change()
        self._screen.wait_until_stable()

    def _perform_one(self, event: InputEvent) -> list[str]:
        match event:
            case MovePointer():
                self._move(event)
            case ClickButton(button=button, times=times, interval=interval):
                self._click(button, times, interval)
            case SetButton(button=button, down=down):
                self._button(button, down)
            case TurnWheel(notches=notches, horizontal=horizontal):
                for _ in range(abs(notches)):
                    self._press_and_release(_WHEEL_BUTTONS[horizontal, notches > 0])
            case SetKey(key=key, down=down):
                return self._hold_keys((key,)) if down else self._release_keys((key,))
            case PressKeys():
                return self._press_keys(event)
            case KeyChord(keys=keys):
                return self._hold_keys(keys) + self._release_keys(keys)
            case TypeText(text=text, interval=interval):
                return self._keyboard.write(text, max(interval, _KEY_SECONDS))
            case SetClipboard(text=text):
                subprocess.run(["xclip", "-selection", "clipboard", "-in"], input=text.encode(), check=False)
            case Sleep(seconds=seconds):
                time.sleep(seconds)
        return []

    def _move(self, event: MovePointer) -> None:
        pointer = self._display.screen().root.query_pointer()
        x0, y0 = pointer.root_x, pointer.root_y
        x1, y1 = x0 if event.x is None else event.x, y0 if event.y is None else event.y
        gliding = bool(self._held_buttons) or event.seconds > 0
        steps = max(_MIN_GLIDE_STEPS, int(event.seconds / _STEP_SECONDS)) if gliding else 1
        for step in range(1, steps + 1):
            x = min(max(0, round(x0 + (x1 - x0) * step / steps)), self._screen.width - 1)
            y = min(max(0, round(y0 + (y1 - y0) * step / steps)), self._screen.height - 1)
            xtest.fake_input(self._display, X.MotionNotify, x=x, y=y)
            self._display.flush()
            if gliding:
                time.sleep(max(event.seconds / steps, _STEP_SECONDS))

    def _click(self, button: int, times: int, interval: float) -> None:
        pointer = self._display.screen().root.query_pointer()
        before = self._click_of_last_program
        if max(abs(before.x - pointer.root_x), abs(before.y - pointer.root_y)) <= _DOUBLE_CLICK_PIXELS:
            time.sleep(max(0.0, before.time + _DOUBLE_CLICK_SECONDS - time.monotonic()))
        for count in range(times):
            if count:
                time.sleep(interval)
            self._press_and_release(button)
        self._last_click = _LastClick(x=pointer.root_x, y=pointer.root_y, time=time.monotonic())

    def _press_and_release(self, button: int) -> None:
        self._button(button, True)
        self._button(button, False)

    def _button(self, button: int, down: bool) -> None:
        xtest.fake_input(self._display, X.ButtonPress if down else X.ButtonRelease, button)
        self._display.flush()
        (self._held_buttons.add if down else self._held_buttons.discard)(button)

    def _press_keys(self, event: PressKeys) -> list[str]:
        warnings: list[str] = []
        for _ in range(event.times):
            for key in event.keys:
                warnings += self._hold_keys((key,)) + self._release_keys((key,))
                time.sleep(max(event.interval, _KEY_SECONDS))
        return warnings

    def _hold_keys(self, keys: Sequence[str]) -> list[str]:
        return [f"unknown key {key!r}, skipped" for key in keys if not self._keyboard.set_key(key, True)]

    def _release_keys(self, keys: Sequence[str]) -> list[str]:
        """No warnings: the press has given them."""
        for key in reversed(keys):
            self._keyboard.set_key(key, False)
        return []


class _Keyboard:
    """Types keysyms with the X server's layout. Missing keysyms are mapped to spare keys."""

    def __init__(self, connection: display.Display, wait_for_layout: Callable[[], None]) -> None:
        self._display = connection
        self._wait_for_layout = wait_for_layout
        low, high = connection.display.info.min_keycode, connection.display.info.max_keycode
        rows = connection.get_keyboard_mapping(low, high - low + 1)
        self._codes: dict[int, tuple[int, bool]] = {}
        for shifted in (False, True):
            for code, row in enumerate(rows, low):
                if row[shifted]:
                    self._codes.setdefault(row[shifted], (code, shifted))
        self._levels = len(rows[0])
        self._spare = [code for code, row in enumerate(rows, low) if not any(row) and code > low]
        self._mapped: dict[int, int] = {}  # keysym to spare key code
        self._shift = self._codes[SHIFT][0]

    def set_key(self, name: str, down: bool) -> bool:
        """Presses or releases one key, with Shift if the key needs it. False for an unknown name."""
        keysym = keysym_of_key(name)
        if keysym is None:
            return False
        self._map_missing([keysym])
        code, shifted = self._key_of(keysym)
        codes = [self._shift, code] if shifted else [code]
        for each in codes if down else reversed(codes):
            self._send(each, down)
        return True

    def write(self, text: str, interval: float) -> list[str]:
        keysyms = {character: keysym_of_character(character) for character in text}
        missing = [character for character, keysym in keysyms.items() if keysym is None]
        known = [keysym for character in text if (keysym := keysyms[character]) is not None]
        while known:
            count = self._map_missing(known)
            for keysym in known[:count]:
                self._type_keysym(keysym)
                time.sleep(interval)
            known = known[count:]
        return [f"no key for the character {ord(character):#04x}, skipped" for character in missing]

    def _type_keysym(self, keysym: int) -> None:
        code, shifted = self._key_of(keysym)
        if shifted:
            self._send(self._shift, True)
        self._send(code, True)
        self._send(code, False)
        if shifted:
            self._send(self._shift, False)

    def _send(self, code: int, down: bool) -> None:
        xtest.fake_input(self._display, X.KeyPress if down else X.KeyRelease, code)
        self._display.flush()

    def _key_of(self, keysym: int) -> tuple[int, bool]:
        return self._codes.get(keysym) or (self._mapped[keysym], False)

    def _map_missing(self, keysyms: Sequence[int]) -> int:
        """Maps missing keysyms to spare keys. Returns how many of the first `keysyms` can be typed now."""
        count, missing = typeable_prefix(keysyms, self._codes.keys(), len(self._spare))
        unmapped = [keysym for keysym in missing if keysym not in self._mapped]
        if not unmapped:
            return count
        if len(self._mapped) + len(unmapped) > len(self._spare):
            self._wait_for_layout()
            self._mapped = {keysym: code for keysym, code in self._mapped.items() if keysym in missing}
        free = [code for code in self._spare if code not in self._mapped.values()]
        for keysym, code in zip(unmapped, free, strict=False):
            self._display.change_keyboard_mapping(code, [[keysym] * self._levels])
            self._mapped[keysym] = code
        self._wait_for_layout()
        return count
