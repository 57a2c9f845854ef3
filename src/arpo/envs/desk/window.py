"""Windows: a part of the world on show, and the one that asks a question and lets nothing past.

A window owns what it shows (its place, its focus, what is selected), never the data behind it: that is the
desktop's world. Where events go, and which window lies over which, is the desktop's affair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH, Canvas, Colour
from arpo.envs.desk.widgets import Act, Button, Field, TextEdit, Widget

if TYPE_CHECKING:
    from arpo.envs.desk.desktop import Desktop


class Window:
    """A place on the screen that shows part of the world. Applications and dialogs are its subclasses."""

    columns, rows = 24, 9
    modal = False

    def __init__(self, desktop: Desktop, column: int, row: int) -> None:
        self.desktop = desktop
        self.column, self.row = column, row
        self.focus: TextEdit | None = None  # one of the fields that `widgets` shows, or none
        self._drawn: tuple[object, ...] = ()  # how it looked the last time
        self._picture: NDArray[np.uint8] = np.empty((0, 0), np.uint8)

    @property
    def title(self) -> str:
        raise AssertionError("every window has a title")

    def widgets(self) -> list[Widget]:
        raise AssertionError("every window has widgets")

    def key(self, keys: tuple[str, ...]) -> None:
        """A key that no text field wanted."""

    def scroll(self, lines: int) -> None:
        """The wheel over this window."""

    def leave(self) -> None:
        """The window is about to close."""

    def load(self, folder: str, name: str) -> None:
        """Show this file, where the application reads files."""

    def focus_on(self, edit: TextEdit) -> Act:
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

    def holds(self, column: int, row: int) -> bool:
        return 0 <= column - self.column < self.columns and 0 <= row - self.row < self.rows

    def widget_at(self, column: int, row: int) -> Widget | None:
        inside = (column - self.column, row - self.row - 1)
        return next((widget for widget in reversed(self.widgets()) if widget.holds(*inside)), None)

    def draw(self, canvas: Canvas, *, active: bool) -> None:
        """Paint the window; one that looks as it did the last time is copied from then."""
        widgets = self.widgets()
        look = (canvas.pixels.shape, self.column, self.row, active, self.title, widgets)
        x, y = self.column * CELL_WIDTH, self.row * CELL_HEIGHT
        area = canvas.area(x, y, self.columns * CELL_WIDTH, self.rows * CELL_HEIGHT)
        if look == self._drawn:
            canvas.pixels[area] = self._picture
        else:
            self._paint(canvas, widgets, active=active)
            self._drawn, self._picture = look, canvas.pixels[area].copy()

    def _paint(self, canvas: Canvas, widgets: list[Widget], *, active: bool) -> None:
        x, y = self.column * CELL_WIDTH, self.row * CELL_HEIGHT
        wide, high = self.columns * CELL_WIDTH, self.rows * CELL_HEIGHT
        canvas.fill(x, y + CELL_HEIGHT, wide, high - CELL_HEIGHT, Colour.PAPER)
        canvas.fill(x, y, wide, CELL_HEIGHT, Colour.TITLE if active else Colour.TITLE_IDLE)
        canvas.text(x, y, self.title[: self.columns - 2], Colour.LIGHT)
        canvas.box(x + wide - 2 * CELL_WIDTH, y, 2 * CELL_WIDTH, CELL_HEIGHT, Colour.DANGER, Colour.INK)
        canvas.text(x + wide - 2 * CELL_WIDTH + 4, y, "x", Colour.LIGHT)
        for widget in widgets:
            widget.draw(canvas, x + widget.column * CELL_WIDTH, y + (widget.row + 1) * CELL_HEIGHT)
        canvas.fill(x, y + CELL_HEIGHT, 1, high - CELL_HEIGHT, Colour.INK)
        canvas.fill(x + wide - 1, y + CELL_HEIGHT, 1, high - CELL_HEIGHT, Colour.INK)
        canvas.fill(x, y + high - 1, wide, 1, Colour.INK)


class Dialog(Window):
    """A question that must be answered first; with `ask` it wants a name, without it a yes or no."""

    columns, rows = 16, 4
    modal = True

    def __init__(self, desktop: Desktop, question: str, answer: Callable[[str], None], *, ask: bool) -> None:
        super().__init__(desktop, 8, 3)
        self.question = question
        self.answer = answer
        self.edit = TextEdit()
        self.ask = ask
        self.focus = self.edit if ask else None

    @property
    def title(self) -> str:
        return self.question

    def widgets(self) -> list[Widget]:
        yes, no = ("OK", "Cancel") if self.ask else ("Yes", "No")
        buttons: list[Widget] = [
            Button(column=2, row=2, columns=4, label=yes, click=self._accept),
            Button(column=8, row=2, columns=6, label=no, click=lambda: self.desktop.close(self)),
        ]
        return [self.field(2, 0, 12, self.edit, "Name"), *buttons] if self.ask else buttons

    def key(self, keys: tuple[str, ...]) -> None:
        if keys == ("enter",):
            self._accept()
        elif keys == ("esc",):
            self.desktop.close(self)

    def _accept(self) -> None:
        if self.ask and not self.edit.text:
            return
        self.desktop.close(self)
        self.answer(self.edit.text)
