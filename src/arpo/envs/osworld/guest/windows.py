"""Windows, as the window manager lists them: finding, waiting for, activating and closing them by name.

A name matches as wmctrl matches it: part of the title, in any case; with `strict` the whole title, exactly;
with `by_class` the window's class in place of its title.
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
_PASSING = ("SPLASH", "DOCK", "DESKTOP", "NOTIFICATION")
_FROM_PAGER = 2  # the source of a request, as the window manager's rules count it


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    id: int
    title: str
    klass: str  # as wmctrl -x writes it: instance.Class
    passing: bool  # a splash screen, a dock: not what an application is started for

    def matches(self, name: str, strict: bool, by_class: bool) -> bool:
        names = {self.klass} if by_class else {self.title, self.title.replace(_BROWSER, _BROWSER_IN_TASKS)}
        return name in names if strict else any(name.lower() in own.lower() for own in names)


class Windows:
    def __init__(self) -> None:
        self._display = display.Display()
        self._root = self._display.screen().root
        self._lock = threading.RLock()

    def screen_size(self) -> tuple[int, int]:
        screen = self._display.screen()
        return screen.width_in_pixels, screen.height_in_pixels

    def cursor(self) -> tuple[int, int]:
        with self._lock:
            at = self._root.query_pointer()
            return at.root_x, at.root_y

    def paint_background(self, color: int) -> None:
        with self._lock:
            self._root.change_attributes(background_pixel=color)
            self._root.clear_area()
            self._display.sync()

    def paint_wallpaper(self, picture: Path) -> None:
        """Show a picture behind all windows, over the whole screen."""
        from PIL import Image  # rarely needed, slow to load

        size = self.screen_size()
        image = Image.open(picture).convert("RGB").resize(size)
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
        """Until the window manager has said all that a dock asks for."""
        marks = ("_NET_SUPPORTING_WM_CHECK", "_NET_NUMBER_OF_DESKTOPS")
        return self._wait(seconds, lambda: all(self._property(self._root, mark) for mark in marks))

    def all(self, except_ids: Set[int] = frozenset()) -> list[Window]:
        """Every managed window, the oldest first."""
        with self._lock:
            ids = [id for id in self._property(self._root, "_NET_CLIENT_LIST") if id not in except_ids]
            return [window for id in ids if (window := self._window(id))]

    def active(self) -> Window | None:
        with self._lock:
            ids = self._property(self._root, "_NET_ACTIVE_WINDOW")
            return self._window(ids[0]) if ids and ids[0] else None

    def find(self, name: str, strict: bool, by_class: bool) -> Window | None:
        return next((each for each in self.all() if each.matches(name, strict, by_class)), None)

    def wait(self, seconds: float, wanted: Callable[[Window], bool]) -> Window | None:
        """The first window that is wanted, as soon as there is one."""
        found: list[Window] = []

        def there() -> bool:
            found.extend(window for window in self.all() if wanted(window))
            return bool(found)

        return found[0] if self._wait(seconds, there) else None

    def activate(self, window: Window) -> None:
        self._ask("_NET_ACTIVE_WINDOW", window.id, [_FROM_PAGER, X.CurrentTime, 0, 0, 0])

    def close(self, window: Window) -> None:
        self._ask("_NET_CLOSE_WINDOW", window.id, [X.CurrentTime, _FROM_PAGER, 0, 0, 0])

    def size(self, window: Window) -> tuple[int, int]:
        with self._lock:
            geometry = self._display.create_resource_object("window", window.id).get_geometry()
            return geometry.width, geometry.height

    def _ask(self, message: str, window: int, data: list[int]) -> None:
        with self._lock:
            target = self._display.create_resource_object("window", window)
            request = event.ClientMessage(
                window=target, client_type=self._display.intern_atom(message), data=(32, data)
            )
            mask = X.SubstructureRedirectMask | X.SubstructureNotifyMask
            self._root.send_event(request, event_mask=mask)
            self._display.sync()

    def _wait(self, seconds: float, happened: Callable[[], bool]) -> bool:
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

    def _window(self, id: int) -> Window | None:
        """None for a window that has gone meanwhile."""
        window = self._display.create_resource_object("window", id)
        try:
            title = window.get_full_property(self._display.intern_atom("_NET_WM_NAME"), X.AnyPropertyType)
            title = title or window.get_full_property(Xatom.WM_NAME, X.AnyPropertyType)
            klass = window.get_wm_class()
            kinds = set(self._property(window, "_NET_WM_WINDOW_TYPE"))
        except error.XError:
            return None
        passing = any(self._display.intern_atom(f"_NET_WM_WINDOW_TYPE_{kind}") in kinds for kind in _PASSING)
        name = _text(title.value) if title else ""
        return Window(id=id, title=name, klass=".".join(klass or ()), passing=passing)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
