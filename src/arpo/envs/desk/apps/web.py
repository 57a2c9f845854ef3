"""A browser with one page: an order form. A submitted order is final."""

from __future__ import annotations

from arpo.envs.desk.widgets import Button, Callback, Check, DropDown, Label, Radio, TextEdit, Widget
from arpo.envs.desk.window import Window, WindowManager
from arpo.envs.desk.words import CITIES, ITEMS, SIZES


class Web(Window):
    def __init__(self, desktop: WindowManager, column: int, row: int) -> None:
        super().__init__(desktop, column, row)
        self._reset()

    def _reset(self) -> None:
        self.name = TextEdit()
        self.focus = None
        self.item = self.city = self.size = ""
        self.gift = self.submitted = False

    @property
    def title(self) -> str:
        return "Web Order"

    def widgets(self) -> list[Widget]:
        if self.submitted:
            again = Button(column=2, row=4, columns=4, label="New", click=self._reset)
            return [Label(column=2, row=2, columns=8, label="Thanks"), again]
        sizes: list[Widget] = [
            Radio(
                column=8 * i, row=4, columns=8, label=size, on=self.size == size,
                click=self._set("size", size),
            )
            for i, size in enumerate(SIZES)
        ]  # fmt: skip
        return [
            Label(column=0, row=0, columns=4, label="Name"),
            self.field(6, 0, 12, self.name, "Name"),
            Label(column=0, row=1, columns=4, label="Item"),
            self._drop_down("item", ITEMS, 1),
            Label(column=0, row=2, columns=4, label="City"),
            self._drop_down("city", CITIES, 2),
            *sizes,
            Check(
                column=0, row=5, columns=8, label="Gift", on=self.gift, click=self._set("gift", not self.gift)
            ),
            Button(column=0, row=6, columns=6, label="Submit", click=self._submit),
            Button(column=8, row=6, columns=6, label="Clear", click=self._reset),
        ]

    def _drop_down(self, name: str, values: tuple[str, ...], row: int) -> DropDown:
        def open_menu() -> None:
            choices = tuple((value, self._set(name, value)) for value in values)
            self.desktop.open_menu(self.column + 6, self.row + row + 2, choices)

        return DropDown(column=6, row=row, columns=12, label=getattr(self, name), click=open_menu)

    def _set(self, name: str, value: str | bool) -> Callback:
        return lambda: setattr(self, name, value)

    def _submit(self) -> None:
        order = {
            "name": self.name.text, "item": self.item, "city": self.city, "size": self.size,
            "gift": self.gift,
        }  # fmt: skip
        self.desktop.world["orders"].append(order)
        self.submitted, self.focus = True, None
