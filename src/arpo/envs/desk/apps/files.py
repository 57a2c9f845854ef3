"""The file manager: folders, a scrolling list, drag and drop, a context menu, confirmations."""

from __future__ import annotations

from arpo.envs.desk.widgets import Button, Callback, Item, Label, ScrollBar, Widget
from arpo.envs.desk.window import Window, WindowManager

VISIBLE_ROWS = 6
ROOT = ""
Folders = dict[str, dict[str, str]]


def name_taken(folders: Folders, folder: str, name: str) -> bool:
    """Whether `folder` contains this name. The root also contains the folders."""
    return name in folders[folder] or (folder == ROOT and name in folders)


class Files(Window):
    def __init__(self, desktop: WindowManager, column: int, row: int) -> None:
        super().__init__(desktop, column, row)
        self.folder = ROOT
        self.selected = ""
        self.top = 0

    @property
    def title(self) -> str:
        return f"File {self.folder}".strip()

    @property
    def folders(self) -> Folders:
        folders: Folders = self.desktop.world["files"]
        return folders

    def entries(self) -> list[str]:
        inside = [name for name in self.folders if name != ROOT] if self.folder == ROOT else []
        return inside + list(self.folders[self.folder])

    def widgets(self) -> list[Widget]:
        entries = self.entries()
        tools: list[Widget] = [
            Button(column=0, row=0, columns=4, label="New", click=self._new_folder),
            Button(column=4, row=0, columns=4, label="Del", click=self._delete_selected),
            Button(column=8, row=0, columns=4, label="Up", click=lambda: self.enter(ROOT)),
            ScrollBar(
                column=22, row=1, columns=2, rows=VISIBLE_ROWS, top=self.top, shown=VISIBLE_ROWS,
                total=len(entries), scroll=self.scroll,
            ),
            Label(column=0, row=7, columns=12, label=f"{len(entries)} items"),
        ]  # fmt: skip
        shown = entries[self.top : self.top + VISIBLE_ROWS]
        return tools + [self._item(name, row + 1) for row, name in enumerate(shown)]

    def _item(self, name: str, row: int) -> Item:
        folder = self._is_folder(name)
        return Item(
            column=0, row=row, columns=22, label=name, on=name == self.selected, folder=folder,
            click=lambda: self._select(name), double_click=lambda: self._open(name),
            menu=(
                ("Open", lambda: self._open(name)),
                ("Rename", self._rename(name)),
                ("Delete", self._delete(name)),
            ),
            payload="" if folder else name,
            accept=(lambda file: self._move(file, name)) if folder else None,
        )  # fmt: skip

    def scroll(self, lines: int) -> None:
        self.top = max(0, min(self.top + lines, len(self.entries()) - VISIBLE_ROWS))

    def key(self, keys: tuple[str, ...]) -> None:
        if keys == ("delete",):
            self._delete_selected()
        elif keys == ("enter",) and self.selected:
            self._open(self.selected)
        elif keys == ("f2",) and self.selected:
            self._rename(self.selected)()

    def enter(self, folder: str) -> None:
        self.folder, self.selected, self.top = folder, "", 0

    def _is_folder(self, name: str) -> bool:
        return self.folder == ROOT and name in self.folders

    def _select(self, name: str) -> None:
        self.selected = name

    def _open(self, name: str) -> None:
        if self._is_folder(name):
            self.enter(name)
        else:
            self.desktop.open_file(self.folder, name)

    def _new_folder(self) -> None:
        def make(name: str) -> None:
            if not name_taken(self.folders, ROOT, name):
                self.folders[name] = {}

        self.desktop.ask_name("New folder", make)

    def _delete_selected(self) -> None:
        if self.selected:
            self._delete(self.selected)()

    def _delete(self, name: str) -> Callback:
        def delete() -> None:
            del (self.folders if self._is_folder(name) else self.folders[self.folder])[name]
            self.selected = ""
            self.scroll(0)

        return lambda: self.desktop.confirm(f"Delete {name}", delete)

    def _rename(self, name: str) -> Callback:
        def rename(new: str) -> None:
            if name_taken(self.folders, self.folder, new):
                return
            if self._is_folder(name):
                self.folders[new] = self.folders.pop(name)
            else:
                self.folders[self.folder][new] = self.folders[self.folder].pop(name)
            self.selected = ""

        return lambda: self.desktop.ask_name(f"Rename {name}", rename)

    def _move(self, file: str, folder: str) -> None:
        if not name_taken(self.folders, folder, file):
            self.folders[folder][file] = self.folders[self.folder].pop(file)
            self.selected = ""
            self.scroll(0)
