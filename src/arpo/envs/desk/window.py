"""Windows: the base class of every application, and the modal dialog.

A window owns its view: position, focus and selection. The data behind it is the desktop's world.
The desktop dispatches events and orders the windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH, Canvas, Colour
from arpo.envs.desk.widgets import Button, Callback, Choices, Field, TextEdit, Widget
from arpo.envs.desk.world import World


class WindowManager(Protocol):
    """The part of the desktop that its windows use."""

    world: World

    def show(self, window: Window) -> None: ...

    def close(self, window: Window) -> None: ...

    def open_file(self, folder: str, name: str) -> None: ...

    def open_menu(self, column: int, row: int, choices: Choices) -> None: ...

    def confirm(self, question: str, on_accept: Callback) -> None: ...

    def ask_name(self, question: str, on_accept: Callable[[str], None]) -> None: ...

    def key(self, keys: tuple[str, ...]) -> None: ...


class Window:
    """A rectangle of the screen with a view of the world. Applications and dialogs are subclasses."""

    columns, rows = 24, 9
    modal = False

    def __init__(self, desktop: WindowManager, column: int, row: int) -> None:
        self.desktop = desktop
        self.column, self.row = column, row
        self.focus: TextEdit | None = None  # the text of one of the fields in `widgets`
        self._cache_key: tuple[object, ...] = ()
        self._cached_pixels: NDArray[np.uint8] = np.empty((0, 0), np.uint8)

    @property
    def title(self) -> str:
        raise AssertionError("every window has a title")

    def widgets(self) -> list[Widget]:
        raise AssertionError("every window has widgets")

    def key(self, keys: tuple[str, ...]) -> None:
        """Handle a key not used by the focused text field."""

    def scroll(self, lines: int) -> None:
        """Handle the mouse wheel. Positive `lines` scroll down."""

    def on_close(self) -> None:
        """Run before the window closes."""

    def load(self, folder: str, name: str) -> None:
        """Show this file, if the application opens files."""

    def focus_on(self, edit: TextEdit) -> Callback:
        def focus() -> None:
            self.focus = edit

        return focus

    def field(self, column: int, row: int, columns: int, edit: TextEdit, label: str, rows: int = 1) -> Field:
        return Field(
            column=column, row=row, columns=columns, rows=rows, label=label, text=edit.text, caret=edit.caret,
            selection=edit.selection, focused=self.focus is edit, edit=edit, click=self.focus_on(edit),
        )  # fmt: skip

    def tab_order(self) -> list[TextEdit]:
        return [widget.edit for widget in self.widgets() if isinstance(widget, Field)]

    def contains(self, column: int, row: int) -> bool:
        return 0 <= column - self.column < self.columns and 0 <= row - self.row < self.rows

    def widget_at(self, column: int, row: int) -> Widget | None:
        inside = (column - self.column, row - self.row - 1)
        return next((widget for widget in reversed(self.widgets()) if widget.contains(*inside)), None)

    def draw(self, canvas: Canvas, *, active: bool) -> None:
        """Paint the window. An unchanged window is copied from the cache."""
        widgets = self.widgets()
        key = (canvas.pixels.shape, self.column, self.row, active, self.title, widgets)
        x, y = self.column * CELL_WIDTH, self.row * CELL_HEIGHT
        area = canvas.area(x, y, self.columns * CELL_WIDTH, self.rows * CELL_HEIGHT)
        if key == self._cache_key:
            canvas.pixels[area] = self._cached_pixels
        else:
            self._paint(canvas, widgets, active=active)
            self._cache_key, self._cached_pixels = key, canvas.pixels[area].copy()

    def _paint(self, canvas: Canvas, widgets: list[Widget], *, active: bool) -> None:
        x, y = self.column * CELL_WIDTH, self.row * CELL_HEIGHT
        width, height = self.columns * CELL_WIDTH, self.rows * CELL_HEIGHT
        canvas.fill(x, y + CELL_HEIGHT, width, height - CELL_HEIGHT, Colour.PAPER)
        canvas.fill(x, y, width, CELL_HEIGHT, Colour.TITLE if active else Colour.TITLE_IDLE)
        canvas.text(x, y, self.title[: self.columns - 2], Colour.LIGHT)
        canvas.box(x + width - 2 * CELL_WIDTH, y, 2 * CELL_WIDTH, CELL_HEIGHT, Colour.DANGER, Colour.INK)
        canvas.text(x + width - 2 * CELL_WIDTH + 4, y, "x", Colour.LIGHT)
        for widget in widgets:
            widget.draw(canvas, x + widget.column * CELL_WIDTH, y + (widget.row + 1) * CELL_HEIGHT)
        canvas.fill(x, y + CELL_HEIGHT, 1, height - CELL_HEIGHT, Colour.INK)
        canvas.fill(x + width - 1, y + CELL_HEIGHT, 1, height - CELL_HEIGHT, Colour.INK)
        canvas.fill(x, y + height - 1, width, 1, Colour.INK)


class Dialog(Window):
    """A modal question: for a name if `asks_name`, otherwise yes or no."""

    columns, rows = 16, 4
    modal = True

    def __init__(
        self, desktop: WindowManager, question: str, on_accept: Callable[[str], None], *, asks_name: bool
    ) -> None:
        super().__init__(desktop, 8, 3)
        self.question = question
        self.on_accept = on_accept
        self.edit = TextEdit()
        self.asks_name = asks_name
        self.focus = self.edit if asks_name else None

    @property
    def title(self) -> str:
        return self.question

    def widgets(self) -> list[Widget]:
        yes, no = ("OK", "Cancel") if self.asks_name else ("Yes", "No")
        buttons: list[Widget] = [
            Button(column=2, row=2, columns=4, label=yes, click=self._accept),
            Button(column=8, row=2, columns=6, label=no, click=lambda: self.desktop.close(self)),
        ]
        return [self.field(2, 0, 12, self.edit, "Name"), *buttons] if self.asks_name else buttons

    def key(self, keys: tuple[str, ...]) -> None:
        if keys == ("enter",):
            self._accept()
        elif keys == ("esc",):
            self.desktop.close(self)

    def _accept(self) -> None:
        if self.asks_name and not self.edit.text:
            return
        self.desktop.close(self)
        self.on_accept(self.edit.text)
