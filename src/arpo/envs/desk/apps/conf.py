"""The settings: four tabs with switches, drop-downs, a slider and the user name."""

from __future__ import annotations

from typing import Any

from arpo.envs.desk.widgets import (
    Button,
    Callback,
    Check,
    DropDown,
    Label,
    Radio,
    Slider,
    TextEdit,
    Widget,
    tab_row,
)
from arpo.envs.desk.window import Window, WindowManager
from arpo.envs.desk.words import LANGUAGES, SIZES, SWITCHES, THEMES

TABS = (("Net", 4), ("Look", 4), ("Sound", 6), ("User", 4))


class Conf(Window):
    def __init__(self, desktop: WindowManager, column: int, row: int) -> None:
        super().__init__(desktop, column, row)
        self.tab = "Net"
        self.name = TextEdit(self.settings["Name"])

    @property
    def title(self) -> str:
        return "Conf"

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.desktop.world["conf"]
        return settings

    def widgets(self) -> list[Widget]:
        widgets = tab_row(TABS, self.tab, self._show)
        match self.tab:
            case "Net":
                return widgets + [self._check(name, 2 + i) for i, name in enumerate(SWITCHES)]
            case "Look":
                return widgets + self._look()
            case "Sound":
                return widgets + self._sound()
            case _:
                return widgets + self._user()

    def _look(self) -> list[Widget]:
        themes: list[Widget] = [
            Radio(
                column=2, row=2 + i, columns=8, label=theme, on=self.settings["Theme"] == theme,
                click=self._set("Theme", theme),
            )
            for i, theme in enumerate(THEMES)
        ]  # fmt: skip
        return [
            Label(column=2, row=1, columns=6, label="Theme"),
            Label(column=12, row=1, columns=6, label="Text"),
            self._drop_down("Text", SIZES, 12, 2),
            *themes,
        ]

    def _sound(self) -> list[Widget]:
        volume = self.settings["Volume"]
        return [
            Label(column=2, row=2, columns=6, label="Volume"),
            Label(column=10, row=2, columns=4, label=str(volume)),
            Slider(
                column=2, row=3, columns=12, label="Volume", value=volume,
                change=lambda value: self._set("Volume", value)(),
            ),
            self._check("Mute", 5),
        ]  # fmt: skip

    def _user(self) -> list[Widget]:
        return [
            Label(column=0, row=2, columns=4, label="Name"),
            self.field(6, 2, 12, self.name, "Name"),
            Button(column=18, row=2, columns=4, label="Save", click=self._set("Name", self.name.text)),
            Label(column=0, row=4, columns=4, label="Lang"),
            self._drop_down("Lang", LANGUAGES, 6, 4),
        ]

    def _check(self, name: str, row: int) -> Check:
        on = self.settings[name]
        return Check(column=2, row=row, columns=12, label=name, on=on, click=self._set(name, not on))

    def _drop_down(self, name: str, values: tuple[str, ...], column: int, row: int) -> DropDown:
        def open_menu() -> None:
            choices = tuple((value, self._set(name, value)) for value in values)
            self.desktop.open_menu(self.column + column, self.row + row + 2, choices)

        return DropDown(column=column, row=row, columns=10, label=self.settings[name], click=open_menu)

    def _set(self, name: str, value: Any) -> Callback:
        def change() -> None:
            self.settings[name] = value

        return change

    def _show(self, tab: str) -> Callback:
        def show() -> None:
            self.tab, self.focus = tab, None

        return show

    def key(self, keys: tuple[str, ...]) -> None:
        if keys == ("enter",) and self.focus is self.name:
            self._set("Name", self.name.text)()
