"""The desktop: stacked windows, a task bar, menus, and event dispatch.

It holds the world (see `world`) and its windows. Applications are in `apps`. Events use layout
units (224x168), not pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH, COLUMNS, ROWS, Canvas, Colour
from arpo.envs.desk.widgets import Callback, Choices, Field, Item, Slider, Switch, TextEdit, Widget
from arpo.envs.desk.window import Dialog, Window
from arpo.envs.desk.world import World

_TASKBAR_ROW = ROWS - 1
_TASKBAR_COLUMNS = 4
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
    """A visible target of the pointer. Position and size are in cells."""

    label: str
    kind: str
    column: int
    row: int
    columns: int
    rows: int
    on: bool = False  # checked or selected

    @property
    def centre(self) -> tuple[int, int]:
        """Layout units (x, y)."""
        return (
            self.column * CELL_WIDTH + self.columns * CELL_WIDTH // 2,
            self.row * CELL_HEIGHT + self.rows * CELL_HEIGHT // 2,
        )


class Desktop:
    def __init__(self, world: World, apps: dict[str, type[Window]]) -> None:
        self.world = world
        self.apps = apps
        self.windows: list[Window] = []  # back to front
        self.popup: Popup | None = None
        self.clipboard = ""
        self._held_keys: tuple[str, ...] = ()
        self._pressed_at: tuple[int, int] | None = None

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
        """Open an application from the task bar. Does nothing during a dialog or for an unknown name."""
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
        """Show a file in the text editor."""
        window = self.launch("Note")
        window.load(folder, name)

    def confirm(self, question: str, on_accept: Callback) -> None:
        """Open a modal yes/no question."""
        self.show(Dialog(self, question, lambda _: on_accept(), asks_name=False))

    def ask_name(self, question: str, on_accept: Callable[[str], None]) -> None:
        """Open a modal question with a text field. An empty name is not accepted."""
        self.show(Dialog(self, question, on_accept, asks_name=True))

    def open_menu(self, column: int, row: int, choices: Choices) -> None:
        """Open a menu at a cell, moved up or left if it would leave the screen."""
        self.popup = Popup(
            min(column, COLUMNS - _POPUP_COLUMNS), min(row, _TASKBAR_ROW - len(choices)), choices
        )

    # events, in layout units

    def click(self, x: int, y: int) -> None:
        column, row = _cell_at(x, y)
        popup, self.popup = self.popup, None
        if popup is not None:
            if act := popup.choice_at(column, row):
                act()
            return
        window = self._window_at(column, row)
        if window is None:
            self._click_taskbar(column, row)
            return
        self.bring_to_front(window)
        if row == window.row:
            if column >= window.column + window.columns - 2:
                self.close(window)
            return
        if widget := window.widget_at(column, row):
            widget.click_at(column - window.column - widget.column, row - window.row - 1 - widget.row)

    def double_click(self, x: int, y: int) -> None:
        widget = self._widget_at(*_cell_at(x, y)) if self.popup is None else None
        self.click(x, y)
        if widget is not None:
            widget.double_click()

    def triple_click(self, x: int, y: int) -> None:
        """Select the text of a field; elsewhere a double click."""
        self.double_click(x, y)
        is_field = self.popup is None and isinstance(self._widget_at(*_cell_at(x, y)), Field)
        if is_field and self.front is not None and self.front.focus is not None:
            self.front.focus.select_all()

    def middle_click(self, x: int, y: int) -> None:
        """Insert the selected text into a field, as X does; elsewhere nothing."""
        if self.popup is not None or not isinstance(self._widget_at(*_cell_at(x, y)), Field):
            return
        before = self.front.focus if self.front is not None else None
        selected = before.selected if before is not None else ""
        self.click(x, y)
        if self.front is not None and (focus := self.front.focus) is not None and selected:
            focus.insert(selected)

    def mouse_down(self, x: int, y: int) -> None:
        self._pressed_at = x, y

    def mouse_up(self, x: int, y: int) -> None:
        """A drag from the position of `mouse_down`; a click if both are in one cell."""
        start, self._pressed_at = self._pressed_at, None
        if start is not None and _cell_at(*start) == _cell_at(x, y):
            self.click(x, y)
        elif start is not None:
            self.drag(start, (x, y))

    def right_click(self, x: int, y: int) -> None:
        self.popup = None
        column, row = _cell_at(x, y)
        window = self._window_at(column, row)
        if window is not None:
            self.bring_to_front(window)
        widget = self._widget_at(column, row)
        if widget is not None and widget.menu:
            self.click(x, y)
            self.open_menu(column // 2 * 2, row, widget.menu)

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        self.popup = None
        column, row = _cell_at(*start)
        to_column, to_row = _cell_at(*end)
        window = self._window_at(column, row)
        if window is None:
            return
        self.bring_to_front(window)
        if row == window.row:
            self._move(window, window.column + to_column - column, window.row + to_row - row)
            return
        target = self._widget_at(to_column, to_row)
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
        if window := self._window_at(*_cell_at(x, y)):
            window.scroll(lines)

    def type(self, text: str) -> None:
        """Insert text into the focused field. Without one, or with a modifier held, press keys instead."""
        focus = self.front.focus if self.front is not None else None
        if focus is not None and not self._held_keys:
            focus.insert(text)
        else:
            for character in text:
                self.key((character,))

    def key_down(self, key: str) -> None:
        """Press a key. A modifier stays down until `key_up`."""
        if key not in _MODIFIERS:
            self.key((key,))
        elif key not in self._held_keys:
            self._held_keys = (*self._held_keys, key)

    def key_up(self, key: str) -> None:
        self._held_keys = tuple(held for held in self._held_keys if held != key)

    def key(self, keys: tuple[str, ...]) -> None:
        keys = (*self._held_keys, *keys)
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

    def _click_taskbar(self, column: int, row: int) -> None:
        names = list(self.apps)
        if row == _TASKBAR_ROW and column // _TASKBAR_COLUMNS < len(names):
            self.open_app(names[column // _TASKBAR_COLUMNS])

    def _move(self, window: Window, column: int, row: int) -> None:
        """Move a window to even columns, inside the screen."""
        window.column = max(0, min(column // 2 * 2, COLUMNS - window.columns))
        window.row = max(0, min(row, _TASKBAR_ROW - window.rows))

    def _window_at(self, column: int, row: int) -> Window | None:
        """The window that receives an event at this cell. A modal window blocks all others."""
        if self.front is not None and self.front.modal:
            return self.front if self.front.contains(column, row) else None
        return next((w for w in reversed(self.windows) if w.contains(column, row)), None)

    def _widget_at(self, column: int, row: int) -> Widget | None:
        window = self._window_at(column, row)
        if window is None or row == window.row:
            return None
        return window.widget_at(column, row)

    # screen

    def visible_elements(self, kind: str = "") -> list[Element]:
        """All visible elements, or those of one kind, in reading order."""
        found = [
            Element(
                label=name,
                kind="app",
                column=i * _TASKBAR_COLUMNS,
                row=_TASKBAR_ROW,
                columns=_TASKBAR_COLUMNS,
                rows=1,
            )
            for i, name in enumerate(self.apps)
        ]
        for i, window in enumerate(self.windows):
            above = self.windows[i + 1 :]
            found += [
                element
                for element in _window_elements(window)
                if kind in ("", element.kind) and self._is_visible(element, above)
            ]
        if self.popup is not None:
            found += [
                Element(
                    label=label, kind="choice", column=self.popup.column, row=self.popup.row + i,
                    columns=_POPUP_COLUMNS, rows=1,
                )
                for i, (label, _) in enumerate(self.popup.choices)
            ]  # fmt: skip
        wanted = [element for element in found if kind in ("", element.kind)]
        return sorted(wanted, key=lambda element: (element.row, element.column))

    def _is_visible(self, element: Element, above: Sequence[Window]) -> bool:
        """Whether no window above and no menu covers the middle row, from the left edge to the centre."""
        x, y = element.centre
        row, columns = y // CELL_HEIGHT, range(element.column, x // CELL_WIDTH + 1)
        hidden = any(other.contains(column, row) for other in above for column in columns)
        under = self.popup is not None and any(self.popup.choice_at(column, row) for column in columns)
        return not hidden and not under

    def draw(self, width: int, height: int) -> Canvas:
        canvas = Canvas(width, height)
        self.draw_on(canvas)
        return canvas

    def draw_on(self, canvas: Canvas) -> None:
        """Draw on an empty canvas."""
        for window in self.windows:
            window.draw(canvas, active=window is self.front)
        if self.popup is not None:
            x, y = self.popup.column * CELL_WIDTH, self.popup.row * CELL_HEIGHT
            high = len(self.popup.choices) * CELL_HEIGHT
            canvas.box(x, y, _POPUP_COLUMNS * CELL_WIDTH, high, Colour.LIGHT, Colour.INK)
            for i, (label, _) in enumerate(self.popup.choices):
                canvas.text(x, y + i * CELL_HEIGHT, label, Colour.TITLE)
        self._draw_taskbar(canvas)

    def _draw_taskbar(self, canvas: Canvas) -> None:
        top = _TASKBAR_ROW * CELL_HEIGHT
        canvas.fill(0, top, COLUMNS * CELL_WIDTH, CELL_HEIGHT, Colour.BAR)
        running = {type(window) for window in self.windows}
        for i, (name, kind) in enumerate(self.apps.items()):
            x = i * _TASKBAR_COLUMNS * CELL_WIDTH
            face = Colour.TITLE if kind in running else Colour.EDGE
            canvas.fill(x + 1, top + 1, _TASKBAR_COLUMNS * CELL_WIDTH - 2, CELL_HEIGHT - 2, face)
            canvas.text(x, top, name, Colour.LIGHT)


def _cell_at(x: int, y: int) -> tuple[int, int]:
    return x // CELL_WIDTH, y // CELL_HEIGHT


def _window_elements(window: Window) -> list[Element]:
    """A window's title, close button and widgets."""
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
