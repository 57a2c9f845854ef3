"""Goals in the settings."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from arpo.actions import Click, Point
from arpo.envs.desk.apps.conf import Conf
from arpo.envs.desk.canvas import CELL_WIDTH
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.goals.base import (
    Step,
    choose,
    click,
    click_on,
    close_menu,
    fill_field,
    find_element,
    give_up,
    open_app,
)
from arpo.envs.desk.words import LANGUAGES, MISSING_SWITCHES, PEOPLE, SIZES, SWITCHES, THEMES
from arpo.envs.desk.world import World


def show_tab(desktop: Desktop, tab: str) -> Step | None:
    """Open the settings at a tab."""
    if step := open_app(desktop, "Conf"):
        return step
    front = desktop.front
    assert isinstance(front, Conf)
    return None if front.tab == tab else click_on(desktop, tab, "Tab")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSwitch:
    app: ClassVar[str] = "Conf"
    name: str
    on: bool

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> TurnSwitch:
        name = rng.choice((*SWITCHES, "Mute"))
        return cls(name=name, on=not world["conf"][name])

    @property
    def instruction(self) -> str:
        return f"Turn {'on' if self.on else 'off'} {self.name}"

    def apply(self, world: World) -> None:
        world["conf"][self.name] = self.on

    def next_step(self, desktop: Desktop) -> Step | None:
        if desktop.world["conf"][self.name] == self.on:
            return None
        tab = "Sound" if self.name == "Mute" else "Net"
        return close_menu(desktop) or show_tab(desktop, tab) or click_on(desktop, self.name, "Check")


class _SetValue(ABC):
    """A setting gets another value: the only field of the subclass."""

    app: ClassVar[str] = "Conf"
    key: ClassVar[str]  # in the world's settings
    tab: ClassVar[str]
    noun: ClassVar[str]  # in the instruction
    values: ClassVar[Sequence[Any]]

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> Self:
        (field,) = fields(cls)  # type: ignore[arg-type]
        others = [value for value in cls.values if value != world["conf"][cls.key]]
        return cls(**{field.name: rng.choice(others)})

    @property
    def instruction(self) -> str:
        return f"Set the {self.noun} to {self._value}"

    def apply(self, world: World) -> None:
        world["conf"][self.key] = self._value

    def next_step(self, desktop: Desktop) -> Step | None:
        if desktop.world["conf"][self.key] == self._value:
            return None
        return self._close_menu(desktop) or show_tab(desktop, self.tab) or self._change(desktop)

    @property
    def _value(self) -> Any:
        (field,) = fields(self)  # type: ignore[arg-type]
        return getattr(self, field.name)

    def _close_menu(self, desktop: Desktop) -> Step | None:
        return close_menu(desktop)

    @abstractmethod
    def _change(self, desktop: Desktop) -> Step:
        """Change the value on the open tab."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTheme(_SetValue):
    key, tab, noun, values = "Theme", "Look", "theme", THEMES
    theme: str

    def _change(self, desktop: Desktop) -> Step:
        return click_on(desktop, self.theme, "Radio")


@dataclass(frozen=True, slots=True, kw_only=True)
class _SetDropDown(_SetValue):
    """The setting has the only drop-down on its tab."""

    value: str

    def _close_menu(self, desktop: Desktop) -> Step | None:
        return choose(desktop, self.value)

    def _change(self, desktop: Desktop) -> Step:
        element = find_element(desktop, "", "DropDown")
        assert element is not None
        return click(element, f"Click {self.key}")


class SetTextSize(_SetDropDown):
    key, tab, noun, values = "Text", "Look", "text size", SIZES


class SetLanguage(_SetDropDown):
    key, tab, noun, values = "Lang", "User", "language", LANGUAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVolume(_SetValue):
    key, tab, noun, values = "Volume", "Sound", "volume", range(0, 101, 10)
    volume: int

    def _change(self, desktop: Desktop) -> Step:
        slider = find_element(desktop, "Volume", "Slider")
        assert slider is not None
        x = (slider.column + self.volume // 10) * CELL_WIDTH + CELL_WIDTH // 2
        return Step(f"Set {self.volume}", Click(point=Point(x, slider.centre[1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUserName(_SetValue):
    key, tab, noun, values = "Name", "User", "user name", PEOPLE
    name: str

    def _change(self, desktop: Desktop) -> Step:
        return fill_field(desktop, "Name", self.name) or click_on(desktop, "Save")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMissingSwitch:
    """Infeasible: the switch does not exist."""

    app: ClassVar[str] = "Conf"
    name: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> TurnMissingSwitch:
        return cls(name=rng.choice(MISSING_SWITCHES))

    @property
    def instruction(self) -> str:
        return f"Turn on {self.name}"

    def apply(self, world: World) -> None:
        """Infeasible: nothing changes."""

    def next_step(self, desktop: Desktop) -> Step | None:
        return close_menu(desktop) or show_tab(desktop, "Net") or give_up(self.name)
