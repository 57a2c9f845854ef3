"""The desktop: windows over each other, a task bar, menus, and where each event goes.

It holds the world (the data that checkers judge) and the windows that show it. Applications are in `apps`;
events come in units of the layout (224 by 168), so the desktop knows no pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH, COLUMNS, ROWS, Canvas, Colour
from arpo.envs.desk.widgets import Callback, Choices, Field, Item, Slider, Switch, TextEdit, Widget
from arpo.envs.desk.window import Dialog, Window
from arpo.envs.desk.world import World

_BAR = ROWS - 1
_BAR_CELLS = 4
_POPUP_COLUMNS = 8
_MODIFIERS = ("ctrl", "alt", "shift", "win")


@dataclass(frozen=True, slots=True)
class Popup:
    """An open menu."""

    column: int
    row: int
    choices: Choices

    def choice_at(self, column: int, row: int) -> Callback | None:
        inside = 0 <= column - self.column < _POPUP_COLUMNS and 0 <= row - self.row < len(self.choices)
        return self.choices[row - self.row][1] if inside else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """Something that can be seen and aimed at: its words, its kind, its place on the screen in cells."""

    label: str
    kind: str
    column: int
    row: int
    columns: int
    rows: int
    on: bool = False  # checked, chosen or selected

    @property
    def centre(self) -> tuple[int, int]:
        return (
            self.column * CELL_WIDTH + self.columns * CELL_WIDTH // 2,
            self.row * CELL_HEIGHT + self.rows * CELL_HEIGHT // 2,
        )


class Desktop:
    def __init__(self, world: World, apps: dict[str, type[Window]]) -> None:
        self.world = world
        self.apps = apps
        self.windows: list[Window] = []  # the last one is in front
        self.popup: Popup | None = None
        self.clipboard = ""
        self._held: tuple[str, ...] = ()

    # windows

    @property
    def front(self) -> Window | None:
        return self.windows[-1] if self.windows else None

    def launch(self, app: str, column: int = 4, row: int = 1) -> Window:
        """Open the application, or bring it to the front."""
        kind = self.apps[app]
        window = next((w for w in self.windows if type(w) is kind), None)
        if window is None:
            window = kind(self, column, row)
            self._move(window, column, row)
            self.windows.append(window)
        self.bring_to_front(window)
        return window

    def open_app(self, app: str) -> None:
        """What the task bar does: nothing while a question is open, or where there is no such application."""
        if app in self.apps and not (self.front is not None and self.front.modal):
            self.popup = None
            self.launch(app)

    def show(self, window: Window) -> None:
        """Add a new window in front of the others."""
        self.windows.append(window)

    def bring_to_front(self, window: Window) -> None:
        self.windows.remove(window)
        self.windows.append(window)

    def close(self, window: Window) -> None:
        window.on_close()
        self.windows.remove(window)

    def open_file(self, folder: str, name: str) -> None:
        """Show a file in the application that reads files."""
        window = self.launch("Note")
        window.load(folder, name)

    def confirm(self, question: str, on_accept: Callback) -> None:
        """Open a modal yes/no question."""
        self.show(Dialog(self, question, lambda _: on_accept(), asks_name=False))

    def ask_name(self, question: str, on_accept: Callable[[str], None]) -> None:
        """Open a modal question with a text field. An empty name is not accepted."""
        self.show(Dialog(self, question, on_accept, asks_name=True))

    def open_menu(self, column: int, row: int, choices: Choices) -> None:
        """Open a menu there, moved up or left where it would leave the screen."""
        self.popup = Popup(min(column, COLUMNS - _POPUP_COLUMNS), min(row, _BAR - len(choices)), choices)

    # events, in units

    def click(self, x: int, y: int) -> None:
        column, row = _cell(x, y)
        popup, self.popup = self.popup, None
        if popup is not None:
            if act := popup.choice_at(column, row):
                act()
            return
        window = self._window_for(column, row)
        if window is None:
            self._click_bar(column, row)
            return
        self.bring_to_front(window)
        if row == window.row:
            if column >= window.column + window.columns - 2:
                self.close(window)
            return
        if widget := window.widget_at(column, row):
            widget.click_at(column - window.column - widget.column, row - window.row - 1 - widget.row)

    def double_click(self, x: int, y: int) -> None:
        if self.popup is None and (widget := self._widget(*_cell(x, y))):
            widget.click()
            widget.double_click()
        else:
            self.click(x, y)

    def right_click(self, x: int, y: int) -> None:
        self.popup = None
        column, row = _cell(x, y)
        widget = self._widget(column, row)
        if widget is not None and widget.menu:
            widget.click()
            self.open_menu(column // 2 * 2, row, widget.menu)

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self.popup = None
        column, row = _cell(*start)
        to_column, to_row = _cell(*end)
        window = self._window_for(column, row)
        if window is None:
            return
        self.bring_to_front(window)
        if row == window.row:
            self._move(window, window.column + to_column - column, window.row + to_row - row)
            return
        target = self._widget(to_column, to_row)
        match window.widget_at(column, row):
            case Slider() as slider:
                slider.click_at(to_column - window.column - slider.column, 0)
            case Field() as field:
                field.click_at(column - window.column - field.column, row - window.row - 1 - field.row)
                position = field.index_at(
                    to_column - window.column - field.column, to_row - window.row - 1 - field.row
                )
                field.edit.move_caret(position, extend=True)
            case Item(payload=payload) if payload and isinstance(target, Item) and target.accept:
                target.accept(payload)

    def scroll(self, x: int, y: int, lines: int) -> None:
        if window := self._window_for(*_cell(x, y)):
            window.scroll(lines)

    def type(self, text: str) -> None:
        """Characters as text where a field has the focus; with a key held down, as keys."""
        focus = self.front.focus if self.front is not None else None
        if focus is not None and not self._held:
            focus.insert(text)
        else:
            for character in text:
                self.key((character,))

    def key_down(self, key: str) -> None:
        """Press a key: one of those that change others stays down until it is let go."""
        if key not in _MODIFIERS:
            self.key((key,))
        elif key not in self._held:
            self._held = (*self._held, key)

    def key_up(self, key: str) -> None:
        self._held = tuple(held for held in self._held if held != key)

    def key(self, keys: tuple[str, ...]) -> None:
        keys = (*self._held, *keys)
        if self.popup is not None:
            self.popup = None if keys == ("esc",) else self.popup
            return
        window = self.front
        if window is None:
            return
        if keys == ("alt", "f4"):
            self.close(window)
        elif keys == ("alt", "tab") and not window.modal:
            self.bring_to_front(self.windows[0])
        elif window.focus is None:
            window.key(keys)
        elif keys == ("tab",):
            order = window.tab_order()
            window.focus = order[(order.index(window.focus) + 1) % len(order)]
            window.focus.select_all()
        elif not self._clipboard_key(window.focus, keys) and not window.focus.key(keys):
            window.key(keys)

    def _clipboard_key(self, edit: TextEdit, keys: tuple[str, ...]) -> bool:
        match keys:
            case ("ctrl", "c"):
                self.clipboard = edit.selected
            case ("ctrl", "x"):
                self.clipboard = edit.selected
                edit.insert("")
            case ("ctrl", "v"):
                edit.insert(self.clipboard)
            case _:
                return False
        return True

    def _click_bar(self, column: int, row: int) -> None:
        names = list(self.apps)
        if row == _BAR and column // _BAR_CELLS < len(names):
            self.open_app(names[column // _BAR_CELLS])

    def _move(self, window: Window, column: int, row: int) -> None:
        """Windows keep to the grid and stay on the screen."""
        window.column = max(0, min(column // 2 * 2, COLUMNS - window.columns))
        window.row = max(0, min(row, _BAR - window.rows))

    def _window_for(self, column: int, row: int) -> Window | None:
        """The window that an event at this cell goes to; a modal one lets nothing past."""
        if self.front is not None and self.front.modal:
            return self.front if self.front.contains(column, row) else None
        return next((w for w in reversed(self.windows) if w.contains(column, row)), None)

    def _widget(self, column: int, row: int) -> Widget | None:
        window = self._window_for(column, row)
        if window is None or row == window.row:
            return None
        return window.widget_at(column, row)

    # looking

    def visible_elements(self) -> list[Element]:
        """Everything in sight that a pointer could aim at, top to bottom."""
        found = [
            Element(label=name, kind="app", column=i * _BAR_CELLS, row=_BAR, columns=_BAR_CELLS, rows=1)
            for i, name in enumerate(self.apps)
        ]
        for i, window in enumerate(self.windows):
            above = self.windows[i + 1 :]
            found += [part for part in _parts(window) if self._uncovered(part, above)]
        if self.popup is not None:
            found += [
                Element(
                    label=label, kind="choice", column=self.popup.column, row=self.popup.row + i,
                    columns=_POPUP_COLUMNS, rows=1,
                )
                for i, (label, _) in enumerate(self.popup.choices)
            ]  # fmt: skip
        return sorted(found, key=lambda part: (part.row, part.column))

    def _uncovered(self, part: Element, above: Sequence[Window]) -> bool:
        """Whether its middle row shows, from its first cell to its middle one, and no menu lies over it."""
        x, y = part.centre
        row, columns = y // CELL_HEIGHT, range(part.column, x // CELL_WIDTH + 1)
        hidden = any(other.contains(column, row) for other in above for column in columns)
        under = self.popup is not None and any(self.popup.choice_at(column, row) for column in columns)
        return not hidden and not under

    def draw(self, width: int, height: int) -> Canvas:
        canvas = Canvas(width, height)
        for window in self.windows:
            window.draw(canvas, active=window is self.front)
        if self.popup is not None:
            x, y = self.popup.column * CELL_WIDTH, self.popup.row * CELL_HEIGHT
            high = len(self.popup.choices) * CELL_HEIGHT
            canvas.box(x, y, _POPUP_COLUMNS * CELL_WIDTH, high, Colour.LIGHT, Colour.INK)
            for i, (label, _) in enumerate(self.popup.choices):
                canvas.text(x, y + i * CELL_HEIGHT, label, Colour.TITLE)
        self._draw_bar(canvas)
        return canvas

    def _draw_bar(self, canvas: Canvas) -> None:
        top = _BAR * CELL_HEIGHT
        canvas.fill(0, top, COLUMNS * CELL_WIDTH, CELL_HEIGHT, Colour.BAR)
        running = {type(window) for window in self.windows}
        for i, (name, kind) in enumerate(self.apps.items()):
            x = i * _BAR_CELLS * CELL_WIDTH
            face = Colour.TITLE if kind in running else Colour.EDGE
            canvas.fill(x + 1, top + 1, _BAR_CELLS * CELL_WIDTH - 2, CELL_HEIGHT - 2, face)
            canvas.text(x, top, name, Colour.LIGHT)


def _cell(x: int, y: int) -> tuple[int, int]:
    return x // CELL_WIDTH, y // CELL_HEIGHT


def _parts(window: Window) -> list[Element]:
    """A window's title, its closing mark and its widgets."""
    column, row = window.column, window.row
    return [
        Element(label=window.title, kind="title", column=column, row=row, columns=10, rows=1),
        Element(label="x", kind="close", column=column + window.columns - 2, row=row, columns=2, rows=1),
        *(
            Element(
                label=widget.label, kind=type(widget).__name__, column=column + widget.column,
                row=row + 1 + widget.row, columns=widget.columns, rows=widget.rows,
                on=isinstance(widget, Switch) and widget.on,
            )
            for widget in window.widgets()
        ),
    ]  # fmt: skip
