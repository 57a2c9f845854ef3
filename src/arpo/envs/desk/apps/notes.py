"""A text editor for one file, with an edit menu. Saves by button or key."""

from __future__ import annotations

from arpo.envs.desk.apps.files import ROOT, Folders
from arpo.envs.desk.widgets import Button, Callback, Label, TextEdit, Widget
from arpo.envs.desk.window import Window, WindowManager


class Notes(Window):
    def __init__(self, desktop: WindowManager, column: int, row: int) -> None:
        super().__init__(desktop, column, row)
        self.load(ROOT, "")

    @property
    def title(self) -> str:
        return f"Note {self.name}".strip()

    def load(self, folder: str, name: str) -> None:
        """Show a file, or an empty page if `name` is empty."""
        self.folder, self.name = folder, name
        self.edit = TextEdit(self.desktop.world["files"][folder][name] if name else "")
        self.focus = self.edit

    def widgets(self) -> list[Widget]:
        return [
            Button(column=0, row=0, columns=4, label="New", click=lambda: self.load(ROOT, "")),
            Button(column=4, row=0, columns=4, label="Save", click=self.save),
            Button(column=8, row=0, columns=4, label="Edit", click=self._offer_edits),
            self.field(0, 1, 24, self.edit, "Text", rows=5),
            Label(column=0, row=6, columns=16, label=self.name or "untitled"),
        ]

    def key(self, keys: tuple[str, ...]) -> None:
        if keys == ("ctrl", "s"):
            self.save()
        elif keys == ("ctrl", "n"):
            self.load(ROOT, "")

    def save(self) -> None:
        if self.name:
            self._save_as(self.name)
        else:
            self.desktop.ask_name("Save as", self._save_as)

    def _save_as(self, name: str) -> None:
        files: Folders = self.desktop.world["files"]
        if not (self.folder == ROOT and name in files):  # unless a folder has this name
            self.name = name
            files.setdefault(self.folder, {})[name] = self.edit.text

    def _offer_edits(self) -> None:
        def edit(*keys: str) -> Callback:
            return lambda: self.desktop.key(keys)

        def clear() -> None:
            self.edit.select_all()
            self.edit.insert("")

        choices = (
            ("All", edit("ctrl", "a")), ("Copy", edit("ctrl", "c")), ("Cut", edit("ctrl", "x")),
            ("Paste", edit("ctrl", "v")), ("Clear", clear),
        )  # fmt: skip
        self.desktop.open_menu(self.column + 8, self.row + 2, choices)
