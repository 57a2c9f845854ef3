"""A small spreadsheet: four columns, five rows, an entry line, sums, copy and paste."""

from __future__ import annotations

import re

from arpo.envs.desk.widgets import Button, Callback, Cell, Label, TextEdit, Widget
from arpo.envs.desk.window import Window, WindowManager

COLUMN_NAMES = "ABCD"
ROW_COUNT = 5
Value = int | str
_NUMBER = re.compile("-?[0-9]{1,15}")  # longer numbers are text, as in spreadsheets


class Calc(Window):
    def __init__(self, desktop: WindowManager, column: int, row: int) -> None:
        super().__init__(desktop, column, row)
        self.cell = ""
        self.entry = TextEdit()

    @property
    def title(self) -> str:
        return "Calc"

    @property
    def cells(self) -> dict[str, Value]:
        cells: dict[str, Value] = self.desktop.world["calc"]
        return cells

    def widgets(self) -> list[Widget]:
        widgets: list[Widget] = [
            Label(column=0, row=0, columns=2, label=self.cell),
            self.field(4, 0, 8, self.entry, "Entry"),
            Button(column=14, row=0, columns=4, label="Sum", click=self._sum),
            Button(column=18, row=0, columns=6, label="Clear", click=self._clear),
        ]
        for i, name in enumerate(COLUMN_NAMES):
            widgets.append(Label(column=3 + 4 * i, row=1, columns=2, label=name))
        for j in range(1, ROW_COUNT + 1):
            widgets.append(Label(column=0, row=1 + j, columns=2, label=str(j)))
            for i, name in enumerate(COLUMN_NAMES):
                key = f"{name}{j}"
                widgets.append(
                    Cell(
                        column=2 + 4 * i, row=1 + j, columns=4, label=str(self.cells.get(key, "")),
                        on=key == self.cell, click=self._select(key),
                    )
                )  # fmt: skip
        return widgets

    def key(self, keys: tuple[str, ...]) -> None:
        match keys:
            case ("enter",):
                self._commit()
            case ("esc",):
                self._show()
            case ("ctrl", "s"):
                self._commit()

    def on_close(self) -> None:
        self._commit()

    def _select(self, key: str) -> Callback:
        def select() -> None:
            self._commit()
            self.cell = key
            self._show()

        return select

    def _show(self) -> None:
        """Copy the selected cell into the entry line."""
        if self.cell:
            self.entry = TextEdit(str(self.cells.get(self.cell, "")))
            self.entry.select_all()
            self.focus = self.entry

    def _commit(self) -> None:
        if not self.cell:
            return
        text = self.entry.text.strip()
        if text:
            self.cells[self.cell] = int(text) if _NUMBER.fullmatch(text) else text
        else:
            self.cells.pop(self.cell, None)

    def _sum(self) -> None:
        """Set the selected cell to the sum of the numbers above it."""
        if self.cell:
            above = [self.cells.get(f"{self.cell[0]}{j}", 0) for j in range(1, int(self.cell[1:]))]
            self.entry = TextEdit(str(sum(value for value in above if isinstance(value, int))))
            self._commit()
            self.focus = self.entry

    def _clear(self) -> None:
        if self.cell:
            self.entry = TextEdit()
            self._commit()
            self.focus = self.entry
