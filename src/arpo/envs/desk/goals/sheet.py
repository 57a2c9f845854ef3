"""Goals in the spreadsheet."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from arpo.actions import Click, Hotkey, Point, Type
from arpo.envs.desk.apps.calc import COLUMN_NAMES, ROW_COUNT, Calc
from arpo.envs.desk.canvas import CELL_HEIGHT, CELL_WIDTH
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.goals.base import Step, click_on, close_menu, open_app
from arpo.envs.desk.world import World


def _all_cells() -> list[str]:
    return [f"{column}{row}" for column in COLUMN_NAMES for row in range(1, ROW_COUNT + 1)]


def _filled_cell(rng: random.Random, world: World) -> str:
    return rng.choice(sorted(world["calc"]))


def select_cell(desktop: Desktop, cell: str) -> Step | None:
    """Open the sheet and select this cell. None if it is selected."""
    if step := close_menu(desktop) or open_app(desktop, "Calc"):
        return step
    front = desktop.front
    assert isinstance(front, Calc)
    if front.cell == cell:
        return None
    if front.cell and front.entry.text != str(front.cells.get(front.cell, "")):
        return Step("Press esc", Hotkey(keys=("esc",)))  # a click on another cell would store this text
    x = (front.column + 2 + 4 * COLUMN_NAMES.index(cell[0]) + 2) * CELL_WIDTH
    y = (front.row + 2 + int(cell[1:])) * CELL_HEIGHT + CELL_HEIGHT // 2
    return Step(f"Click {cell}", Click(point=Point(x, y)))


def enter_value(desktop: Desktop, cell: str, value: int) -> Step:
    """Type a value into a cell and confirm it."""
    if step := select_cell(desktop, cell):
        return step
    front = desktop.front
    assert isinstance(front, Calc)
    if front.entry.text == str(value):
        return Step("Press enter", Hotkey(keys=("enter",)))
    if front.entry.selected != front.entry.text:
        return Step("Select all", Hotkey(keys=("ctrl", "a")))
    return Step(f"Type {value}", Type(text=str(value), submit=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PutValue:
    app: ClassVar[str] = "Calc"
    cell: str
    value: int

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> PutValue:
        cell = rng.choice(_all_cells())
        return cls(cell=cell, value=rng.choice([v for v in range(1, 100) if v != world["calc"].get(cell)]))

    @property
    def instruction(self) -> str:
        return f"Put {self.value} in cell {self.cell}"

    def apply(self, world: World) -> None:
        world["calc"][self.cell] = self.value

    def next_step(self, desktop: Desktop) -> Step | None:
        if desktop.world["calc"].get(self.cell) == self.value:
            return None
        return enter_value(desktop, self.cell, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearCell:
    app: ClassVar[str] = "Calc"
    cell: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> ClearCell:
        return cls(cell=_filled_cell(rng, world))

    @property
    def instruction(self) -> str:
        return f"Clear cell {self.cell}"

    def apply(self, world: World) -> None:
        del world["calc"][self.cell]

    def next_step(self, desktop: Desktop) -> Step | None:
        if self.cell not in desktop.world["calc"]:
            return None
        return select_cell(desktop, self.cell) or click_on(desktop, "Clear")


@dataclass(frozen=True, slots=True, kw_only=True)
class SumColumn:
    app: ClassVar[str] = "Calc"
    column: str
    total: int

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> SumColumn:
        columns = sorted({cell[0] for cell in world["calc"] if int(cell[1:]) < ROW_COUNT})
        column = rng.choice(columns)
        above = [world["calc"].get(f"{column}{row}", 0) for row in range(1, ROW_COUNT)]
        return cls(column=column, total=sum(above))

    @property
    def instruction(self) -> str:
        return f"Put the sum of column {self.column} in cell {self.column}{ROW_COUNT}"

    def apply(self, world: World) -> None:
        world["calc"][f"{self.column}{ROW_COUNT}"] = self.total

    def next_step(self, desktop: Desktop) -> Step | None:
        cell = f"{self.column}{ROW_COUNT}"
        if desktop.world["calc"].get(cell) == self.total:
            return None
        return select_cell(desktop, cell) or click_on(desktop, "Sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyValue:
    app: ClassVar[str] = "Calc"
    source: str
    target: str
    value: int

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> CopyValue:
        source = _filled_cell(rng, world)
        empty = [cell for cell in _all_cells() if cell not in world["calc"]]
        return cls(source=source, target=rng.choice(empty), value=world["calc"][source])

    @property
    def instruction(self) -> str:
        return f"Copy the value of cell {self.source} to cell {self.target}"

    def apply(self, world: World) -> None:
        world["calc"][self.target] = self.value

    def next_step(self, desktop: Desktop) -> Step | None:
        if desktop.world["calc"].get(self.target) == self.value:
            return None
        return enter_value(desktop, self.target, self.value)
