"""Widgets: position, drawing, and the effect of a click.

A window builds its widgets from its state on every call, so widgets hold no state. The window owns text under
edit (`TextEdit`). Two widgets are equal if they look the same; callbacks are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH, Canvas, Colour

Callback = Callable[[], None]
Choices = tuple[tuple[str, Callback], ...]


def do_nothing() -> None:
    """Default callback of widgets."""


class TextEdit:
    """Text under edit, with caret, selection and editing keys."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        self.caret = self.anchor = len(text)

    @property
    def selection(self) -> tuple[int, int]:
        return min(self.caret, self.anchor), max(self.caret, self.anchor)

    @property
    def selected(self) -> str:
        start, end = self.selection
        return self.text[start:end]

    def insert(self, text: str) -> None:
        """Replace the selection. Unprintable characters are dropped."""
        start, end = self.selection
        typed = "".join(filter(str.isprintable, text))
        self.text = self.text[:start] + typed + self.text[end:]
        self.caret = self.anchor = start + len(typed)

    def select_all(self) -> None:
        self.anchor, self.caret = 0, len(self.text)

    def move_caret(self, position: int, *, extend: bool = False) -> None:
        self.caret = max(0, min(position, len(self.text)))
        if not extend:
            self.anchor = self.caret

    def key(self, keys: tuple[str, ...]) -> bool:
        """Handle an editing key; False for any other key."""
        extend = len(keys) == 2 and keys[0] == "shift"
        match keys[-1] if extend else " ".join(keys):
            case "backspace":
                self._erase(-1)
            case "delete":
                self._erase(1)
            case "left":
                self.move_caret(self.caret - 1, extend=extend)
            case "right":
                self.move_caret(self.caret + 1, extend=extend)
            case "home":
                self.move_caret(0, extend=extend)
            case "end":
                self.move_caret(len(self.text), extend=extend)
            case "ctrl a":
                self.select_all()
            case "space":
                self.insert(" ")
            case character if len(character) == 1:
                self.insert(character.upper() if extend else character)
            case _:
                return False
        return True

    def _erase(self, step: int) -> None:
        if self.caret == self.anchor:
            self.move_caret(self.caret + step, extend=True)
        self.insert("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Widget:
    """A rectangle in a window's content, in cells, with its callbacks."""

    column: int
    row: int
    columns: int
    rows: int = 1
    label: str = ""
    click: Callback = field(default=do_nothing, compare=False)
    double_click: Callback = field(default=do_nothing, compare=False)
    menu: Choices = field(default=(), compare=False)  # opened by a right click

    def contains(self, column: int, row: int) -> bool:
        return 0 <= column - self.column < self.columns and 0 <= row - self.row < self.rows

    def click_at(self, column: int, row: int) -> None:
        """Handle a click at a cell, relative to the widget's corner."""
        self.click()

    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.text(x, y, self.label[: self.columns], Colour.INK)

    @property
    def width(self) -> int:
        return self.columns * CELL_WIDTH

    @property
    def height(self) -> int:
        return self.rows * CELL_HEIGHT


class Label(Widget):
    """Static text."""


class Button(Widget):
    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.box(x, y, self.width, self.height, Colour.FACE, Colour.EDGE)
        canvas.text(x, y, self.label, Colour.INK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch(Widget):
    """A widget with the states on and off."""

    on: bool = False


class Check(Switch):
    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.box(x + 2, y + 2, 10, 10, Colour.FIELD, Colour.INK)
        if self.on:
            canvas.fill(x + 4, y + 4, 6, 6, Colour.ACCENT)
        canvas.text(x + 2 * CELL_WIDTH, y, self.label, Colour.INK)


class Radio(Switch):
    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.disc(x + 7, y + 7, 6, Colour.INK)
        canvas.disc(x + 7, y + 7, 5, Colour.FIELD)
        if self.on:
            canvas.disc(x + 7, y + 7, 3, Colour.ACCENT)
        canvas.text(x + 2 * CELL_WIDTH, y, self.label, Colour.INK)


class Tab(Switch):
    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.box(x, y, self.width, self.height, Colour.PAPER if self.on else Colour.DIM, Colour.EDGE)
        canvas.text(x, y, self.label, Colour.TITLE if self.on else Colour.INK)


def tab_row(tabs: Sequence[tuple[str, int]], selected: str, show: Callable[[str], Callback]) -> list[Widget]:
    """Tabs on the first row. `tabs` are names and widths in cells; `show` returns a tab's callback."""
    row: list[Widget] = []
    column = 0
    for name, columns in tabs:
        row.append(
            Tab(column=column, row=0, columns=columns, label=name, on=name == selected, click=show(name))
        )
        column += columns
    return row


class DropDown(Widget):
    """Shows the selected value; a click opens the choices."""

    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.box(x, y, self.width, self.height, Colour.FIELD, Colour.EDGE)
        canvas.text(x, y, self.label, Colour.INK)
        arrow = x + self.width - 2 * CELL_WIDTH
        canvas.fill(arrow, y + 1, 2 * CELL_WIDTH - 1, self.height - 2, Colour.FACE)
        for step in range(4):
            canvas.fill(arrow + 3 + step, y + 5 + step, 8 - 2 * step, 1, Colour.INK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider(Widget):
    """Values 0, 10, …, 100, one cell each."""

    value: int
    change: Callable[[int], None] = field(compare=False)

    def click_at(self, column: int, row: int) -> None:
        self.change(10 * max(0, min(column, 10)))

    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.fill(x + 3, y + 6, 10 * CELL_WIDTH, 2, Colour.EDGE)
        canvas.box(x + self.value // 10 * CELL_WIDTH, y + 1, CELL_WIDTH, 12, Colour.ACCENT, Colour.INK)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field(Widget):
    """An editable text, wrapped if it has several rows. It scrolls to keep the caret visible."""

    text: str
    caret: int
    selection: tuple[int, int]
    focused: bool
    edit: TextEdit = field(compare=False)

    @property
    def first_visible(self) -> int:
        """Index of the first visible character."""
        beyond = self.caret // self.columns - self.rows + 1
        return max(0, beyond) * self.columns if self.focused else 0

    def index_at(self, column: int, row: int) -> int:
        return self.first_visible + row * self.columns + column

    def click_at(self, column: int, row: int) -> None:
        self.click()
        self.edit.move_caret(self.index_at(column, row))

    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.box(
            x, y, self.width, self.height, Colour.FIELD, Colour.ACCENT if self.focused else Colour.EDGE
        )
        for row in range(self.rows):
            start, end = self.index_at(0, row), self.index_at(0, row + 1)
            if self.focused:
                left, right = max(start, self.selection[0]), min(end, self.selection[1])
                width = max(0, right - left) * CELL_WIDTH
                canvas.fill(x + (left - start) * CELL_WIDTH, y + 1, width, CELL_HEIGHT - 2, Colour.FOLDER)
            if line := self.text[start:end]:
                canvas.text(x, y, line, Colour.INK)
            if self.focused and start <= self.caret < end:
                left = x + (self.caret - start) * CELL_WIDTH
                canvas.fill(left, y + 2, 2, CELL_HEIGHT - 4, Colour.ACCENT)
            y += CELL_HEIGHT


@dataclass(frozen=True, slots=True, kw_only=True)
class Item(Switch):
    """A row of a list. An item with a `payload` can be dragged onto an item with `accept`."""

    folder: bool = False
    flagged: bool = False
    payload: str = ""
    accept: Callable[[str], None] | None = field(default=None, compare=False)

    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.fill(x, y, self.width, self.height, Colour.ACCENT if self.on else Colour.FIELD)
        if self.folder:
            canvas.box(x + 2, y + 3, 10, 8, Colour.FOLDER, Colour.EDGE)
        elif self.flagged:
            canvas.fill(x + 4, y + 4, 6, 6, Colour.DANGER)
        text = self.label[: self.columns - 2]
        canvas.text(x + 2 * CELL_WIDTH, y, text, Colour.LIGHT if self.on else Colour.INK)


class Cell(Switch):
    """A cell of a sheet."""

    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.box(x, y, self.width, self.height, Colour.FIELD, Colour.ACCENT if self.on else Colour.DIM)
        if self.on:
            canvas.box(x + 1, y + 1, self.width - 2, self.height - 2, Colour.FIELD, Colour.ACCENT)
        canvas.text(x, y, self.label[: self.columns], Colour.INK)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrollBar(Widget):
    """Scroll position of a list. A click above or below the middle scrolls by one line."""

    top: int
    shown: int
    total: int
    scroll: Callable[[int], None] = field(compare=False)

    def click_at(self, column: int, row: int) -> None:
        self.scroll(1 if row >= self.rows / 2 else -1)

    def draw(self, canvas: Canvas, x: int, y: int) -> None:
        canvas.fill(x, y, self.width, self.height, Colour.FACE)
        if self.total > self.shown:
            start = self.height * self.top // self.total
            length = self.height * self.shown // self.total
            canvas.box(x + 2, y + start, self.width - 4, length, Colour.TITLE_IDLE, Colour.EDGE)
