"""Goals in the file manager and the editor."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from arpo.actions import Hotkey, Type
from arpo.envs.desk.apps.files import ROOT, VISIBLE_ROWS, Files
from arpo.envs.desk.apps.notes import Notes
from arpo.envs.desk.desktop import Desktop, Element
from arpo.envs.desk.goals.base import (
    Step,
    answer_name,
    answer_yes,
    choose,
    click_on,
    close_menu,
    double_click,
    drag,
    find_item,
    give_up,
    open_app,
    right_click,
)
from arpo.envs.desk.window import Window
from arpo.envs.desk.words import FILES, FOLDERS, TEXTS
from arpo.envs.desk.world import World


def _existing_file(rng: random.Random, world: World) -> str:
    return rng.choice(list(world["files"][ROOT]))


def _unused_file_name(rng: random.Random, world: World) -> str:
    taken = {name for folder in world["files"].values() for name in folder}
    return rng.choice([name for name in FILES if name not in taken])


def show_root(desktop: Desktop) -> Step | None:
    """Show the root folder."""
    if step := open_app(desktop, "File"):
        return step
    front = desktop.front
    assert isinstance(front, Files)
    return click_on(desktop, "Up") if front.folder != ROOT else None


def find_row(desktop: Desktop, name: str) -> Element | Step:
    """The row of a file or folder, or the next step towards it."""
    return close_menu(desktop) or show_root(desktop) or find_item(desktop, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    app: ClassVar[str] = "File"
    file: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> DeleteFile:
        return cls(file=_existing_file(rng, world))

    @property
    def instruction(self) -> str:
        return f"Delete the file {self.file}"

    def apply(self, world: World) -> None:
        del world["files"][ROOT][self.file]

    def next_step(self, desktop: Desktop) -> Step | None:
        if self.file not in desktop.world["files"][ROOT]:
            return None
        if step := answer_yes(desktop, f"Delete {self.file}"):
            return step
        row = find_row(desktop, self.file)
        if isinstance(row, Step):
            return row
        front = desktop.front
        assert isinstance(front, Files)
        return (
            click_on(desktop, "Del") if front.selected == self.file else click_on(desktop, self.file, "Item")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFile:
    app: ClassVar[str] = "File"
    file: str
    folder: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> MoveFile:
        """A file and a folder, both visible without scrolling."""
        folders = [name for name in world["files"] if name != ROOT]
        shown = VISIBLE_ROWS - len(folders)
        file = rng.choice(list(world["files"][ROOT])[:shown])
        return cls(file=file, folder=rng.choice(folders))

    @property
    def instruction(self) -> str:
        return f"Move the file {self.file} to the folder {self.folder}"

    def apply(self, world: World) -> None:
        world["files"][self.folder][self.file] = world["files"][ROOT].pop(self.file)

    def next_step(self, desktop: Desktop) -> Step | None:
        files = desktop.world["files"]
        if self.file not in files[ROOT]:
            return None if self.file in files.get(self.folder, {}) else give_up(self.file)
        if self.folder not in files or self.file in files[self.folder]:  # no folder, or the name is taken
            return give_up(self.folder)
        row = find_row(desktop, self.file)
        if isinstance(row, Step):
            return row
        target = find_item(desktop, self.folder)
        return target if isinstance(target, Step) else drag(row, target, f"Drag {self.file} to {self.folder}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameFile:
    app: ClassVar[str] = "File"
    file: str
    name: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> RenameFile:
        return cls(file=_existing_file(rng, world), name=_unused_file_name(rng, world))

    @property
    def instruction(self) -> str:
        return f"Rename the file {self.file} to {self.name}"

    def apply(self, world: World) -> None:
        world["files"][ROOT][self.name] = world["files"][ROOT].pop(self.file)

    def next_step(self, desktop: Desktop) -> Step | None:
        files = desktop.world["files"][ROOT]
        if self.file not in files:
            return None if self.name in files else give_up(self.file)
        if self.name in files:  # the name is taken
            return give_up(self.name)
        if step := answer_name(desktop, f"Rename {self.file}", self.name):
            return step
        front = desktop.front
        if isinstance(front, Files) and front.selected == self.file and (step := choose(desktop, "Rename")):
            return step
        row = find_row(desktop, self.file)
        return row if isinstance(row, Step) else right_click(row, f"right click {self.file}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeFolder:
    app: ClassVar[str] = "File"
    folder: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> MakeFolder:
        return cls(folder=rng.choice([name for name in FOLDERS if name not in world["files"]]))

    @property
    def instruction(self) -> str:
        return f"Make a folder named {self.folder}"

    def apply(self, world: World) -> None:
        world["files"][self.folder] = {}

    def next_step(self, desktop: Desktop) -> Step | None:
        if self.folder in desktop.world["files"]:
            return None
        return (
            answer_name(desktop, "New folder", self.folder)
            or close_menu(desktop)
            or open_app(desktop, "File")
            or click_on(desktop, "New")
        )


class DeleteMissingFile(DeleteFile):
    """Infeasible: the file does not exist."""

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> DeleteMissingFile:
        return cls(file=_unused_file_name(rng, world))

    def apply(self, world: World) -> None:
        """Infeasible: nothing changes."""

    def next_step(self, desktop: Desktop) -> Step | None:
        return close_menu(desktop) or show_root(desktop) or give_up(self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteNote:
    app: ClassVar[str] = "Note"
    text: str
    file: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> WriteNote:
        return cls(text=rng.choice(TEXTS), file=_unused_file_name(rng, world))

    @property
    def instruction(self) -> str:
        return f"Write {self.text} in a new note and save it as {self.file}"

    def apply(self, world: World) -> None:
        world["files"][ROOT][self.file] = self.text

    def next_step(self, desktop: Desktop) -> Step | None:
        saved = desktop.world["files"][ROOT].get(self.file)
        if saved is not None:  # if it has another text, a fault of this user
            return None if saved == self.text else replace_text(desktop, self.file, self.text)
        written = any(
            isinstance(window, Notes) and not window.name and window.edit.text == self.text
            for window in desktop.windows
        )
        if written and (step := answer_name(desktop, "Save as", self.file)):
            return step
        if step := close_menu(desktop) or open_app(desktop, "Note"):
            return step
        front = desktop.front
        assert isinstance(front, Notes)
        if front.name:
            return click_on(desktop, "New")
        return fill_note(front, self.text) or click_on(desktop, "Save")


def fill_note(notes: Notes, text: str) -> Step | None:
    """Set the text of the editor. None if it is set."""
    edit = notes.edit
    if edit.text == text:
        return None
    if edit.selected != edit.text:
        return Step("Select all", Hotkey(keys=("ctrl", "a")))
    return Step(f"Type {text}", Type(text=text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceText:
    app: ClassVar[str] = "File"
    file: str
    text: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> ReplaceText:
        file = _existing_file(rng, world)
        return cls(file=file, text=rng.choice([text for text in TEXTS if text != world["files"][ROOT][file]]))

    @property
    def instruction(self) -> str:
        return f"Replace the text of the file {self.file} with {self.text}"

    def apply(self, world: World) -> None:
        world["files"][ROOT][self.file] = self.text

    def next_step(self, desktop: Desktop) -> Step | None:
        saved = desktop.world["files"][ROOT].get(self.file)
        if saved is None:
            return give_up(self.file)
        return None if saved == self.text else replace_text(desktop, self.file, self.text)


def replace_text(desktop: Desktop, file: str, text: str) -> Step:
    """Open a file and save it with another text."""
    if step := show_file(desktop, file):
        return step
    front = desktop.front
    assert isinstance(front, Notes)
    return fill_note(front, text) or click_on(desktop, "Save")


def shows_file(window: Window | None, file: str) -> bool:
    """Whether this is the editor with a file of the root folder."""
    return isinstance(window, Notes) and (window.folder, window.name) == (ROOT, file)


def show_file(desktop: Desktop, file: str) -> Step | None:
    """Open a file in the editor."""
    if step := close_menu(desktop):
        return step
    if shows_file(desktop.front, file):
        return None
    row = find_row(desktop, file)
    return row if isinstance(row, Step) else double_click(row, f"Open {file}")
