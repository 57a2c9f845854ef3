"""Finds, awaits, activates and closes the windows of the window manager by name.

Names match as in wmctrl: by default a case-insensitive part of the title; with `strict` the exact title; with
`by_class` the window's class instead of its title.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path

from Xlib import X, Xatom, display, error
from Xlib.protocol import event

_POLL_SECONDS = 0.03
_BROWSER, _BROWSER_IN_TASKS = "Chromium", "Google Chrome"
_AUXILIARY_TYPES = ("SPLASH", "DOCK", "DESKTOP", "NOTIFICATION")
_FROM_PAGER = 2  # source indication of EWMH client messages


@dataclass(frozen=True, slots=True, kw_only=True)
class XWindow:
    id: int
    title: str
    wm_class: str  # instance.Class, as in wmctrl -x
    auxiliary: bool  # a splash screen, dock, desktop or notification

    def matches(self, name: str, strict: bool, by_class: bool) -> bool:
        names = {self.wm_class} if by_class else {self.title, self.title.replace(_BROWSER, _BROWSER_IN_TASKS)}
        return name in names if strict else any(name.lower() in own.lower() for own in names)


class Windows:
    def __init__(self) -> None:
        self._display = display.Display()
        self._root = self._display.screen().root
        self._lock = threading.RLock()

    def screen_size(self) -> tuple[int, int]:
        screen = self._display.screen()
        return screen.width_in_pixels, screen.height_in_pixels

    def paint_background(self, color: int) -> None:
        with self._lock:
            self._root.change_attributes(background_pixel=color)
            self._root.clear_area()
            self._display.sync()

    def paint_wallpaper(self, image_path: Path) -> None:
        """Shows an image behind all windows, scaled to the whole screen."""
        from PIL import Image  # rarely needed, slow to load

        size = self.screen_size()
        image = Image.open(image_path).convert("RGB").resize(size)
        with self._lock:
            pixmap = self._root.create_pixmap(*size, self._display.screen().root_depth)
            context = pixmap.create_gc()
            pixmap.put_pil_image(context, 0, 0, image)
            self._root.change_attributes(background_pixmap=pixmap)
            self._root.clear_area()
            context.free()
            pixmap.free()
            self._display.sync()

    def wait_for_manager(self, seconds: float) -> bool:
        """Waits until the window manager has set the properties that a dock needs. False after `seconds`."""
        properties = ("_NET_SUPPORTING_WM_CHECK", "_NET_NUMBER_OF_DESKTOPS")
        return self._poll(seconds, lambda: all(self._property(self._root, name) for name in properties))

    def all(self, except_ids: Set[int] = frozenset()) -> list[XWindow]:
        """All managed windows, oldest first."""
        with self._lock:
            ids = [id for id in self._property(self._root, "_NET_CLIENT_LIST") if id not in except_ids]
            return [window for id in ids if (window := self._window(id))]

    def active(self) -> XWindow | None:
        with self._lock:
            ids = self._property(self._root, "_NET_ACTIVE_WINDOW")
            return self._window(ids[0]) if ids and ids[0] else None

    def find(self, name: str, strict: bool, by_class: bool) -> XWindow | None:
        return next((each for each in self.all() if each.matches(name, strict, by_class)), None)

    def wait(self, seconds: float, wanted: Callable[[XWindow], bool]) -> XWindow | None:
        """Waits for a window that satisfies `wanted`. None after `seconds`."""
        found: list[XWindow] = []

        def is_found() -> bool:
            found.extend(window for window in self.all() if wanted(window))
            return bool(found)

        return found[0] if self._poll(seconds, is_found) else None

    def activate(self, window: XWindow) -> None:
        self._send_client_message("_NET_ACTIVE_WINDOW", window.id, [_FROM_PAGER, X.CurrentTime, 0, 0, 0])

    def close(self, window: XWindow) -> None:
        self._send_client_message("_NET_CLOSE_WINDOW", window.id, [X.CurrentTime, _FROM_PAGER, 0, 0, 0])

    def size(self, window: XWindow) -> tuple[int, int]:
        with self._lock:
            geometry = self._display.create_resource_object("window", window.id).get_geometry()
            return geometry.width, geometry.height

    def _send_client_message(self, message: str, window: int, data: list[int]) -> None:
        with self._lock:
            target = self._display.create_resource_object("window", window)
            request = event.ClientMessage(
                window=target, client_type=self._display.intern_atom(message), data=(32, data)
            )
            mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask
            self._root.send_event(request, event_mask=mask)
            self._display.sync()

    def _poll(self, seconds: float, happened: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + seconds
        while not happened():
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _property(self, window: object, name: str) -> list[int]:
        with self._lock:
            found = window.get_full_property(self._display.intern_atom(name), X.AnyPropertyType)  # type: ignore[attr-defined]
            return list(found.value) if found else []

    def _window(self, id: int) -> XWindow | None:
        """None if the window has closed meanwhile."""
        window = self._display.create_resource_object("window", id)
        try:
            title = window.get_full_property(self._display.intern_atom("_NET_WM_NAME"), X.AnyPropertyType)
            title = title or window.get_full_property(Xatom.WM_NAME, X.AnyPropertyType)
            wm_class = window.get_wm_class()
            types = set(self._property(window, "_NET_WM_WINDOW_TYPE"))
        except error.XError:
            return None
        names = (f"_NET_WM_WINDOW_TYPE_{name}" for name in _AUXILIARY_TYPES)
        auxiliary = any(self._display.intern_atom(name) in types for name in names)
        text = _decode(title.value) if title else ""
        return XWindow(id=id, title=text, wm_class=".".join(wm_class or ()), auxiliary=auxiliary)


def _decode(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
