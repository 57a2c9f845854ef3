"""Goals in the settings."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

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


def _other_value(rng: random.Random, values: tuple[str, ...], now: str) -> str:
    return rng.choice([value for value in values if value != now])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTheme:
    app: ClassVar[str] = "Conf"
    theme: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> SetTheme:
        return cls(theme=_other_value(rng, THEMES, world["conf"]["Theme"]))

    @property
    def instruction(self) -> str:
        return f"Set the theme to {self.theme}"

    def apply(self, world: World) -> None:
        world["conf"]["Theme"] = self.theme

    def next_step(self, desktop: Desktop) -> Step | None:
        if desktop.world["conf"]["Theme"] == self.theme:
            return None
        return close_menu(desktop) or show_tab(desktop, "Look") or click_on(desktop, self.theme, "Radio")


@dataclass(frozen=True, slots=True, kw_only=True)
class _DropDownSetting:
    """A setting with the only drop-down on its tab."""

    value: str

    def _pick(self, desktop: Desktop, key: str, tab: str) -> Step | None:
        if desktop.world["conf"][key] == self.value:
            return None
        if step := choose(desktop, self.value) or show_tab(desktop, tab):
            return step
        element = find_element(desktop, "", "DropDown")
        assert element is not None
        return click(element, f"Click {key}")


class SetTextSize(_DropDownSetting):
    app: ClassVar[str] = "Conf"

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> SetTextSize:
        return cls(value=_other_value(rng, SIZES, world["conf"]["Text"]))

    @property
    def instruction(self) -> str:
        return f"Set the text size to {self.value}"

    def apply(self, world: World) -> None:
        world["conf"]["Text"] = self.value

    def next_step(self, desktop: Desktop) -> Step | None:
        return self._pick(desktop, "Text", "Look")


class SetLanguage(_DropDownSetting):
    app: ClassVar[str] = "Conf"

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> SetLanguage:
        return cls(value=_other_value(rng, LANGUAGES, world["conf"]["Lang"]))

    @property
    def instruction(self) -> str:
        return f"Set the language to {self.value}"

    def apply(self, world: World) -> None:
        world["conf"]["Lang"] = self.value

    def next_step(self, desktop: Desktop) -> Step | None:
        return self._pick(desktop, "Lang", "User")


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVolume:
    app: ClassVar[str] = "Conf"
    volume: int

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> SetVolume:
        return cls(volume=rng.choice([v for v in range(0, 101, 10) if v != world["conf"]["Volume"]]))

    @property
    def instruction(self) -> str:
        return f"Set the volume to {self.volume}"

    def apply(self, world: World) -> None:
        world["conf"]["Volume"] = self.volume

    def next_step(self, desktop: Desktop) -> Step | None:
        if desktop.world["conf"]["Volume"] == self.volume:
            return None
        if step := close_menu(desktop) or show_tab(desktop, "Sound"):
            return step
        slider = find_element(desktop, "Volume", "Slider")
        assert slider is not None
        x = (slider.column + self.volume // 10) * CELL_WIDTH + CELL_WIDTH // 2
        return Step(f"Set {self.volume}", Click(point=Point(x, slider.centre[1])))


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUserName:
    app: ClassVar[str] = "Conf"
    name: str

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> SetUserName:
        return cls(name=_other_value(rng, PEOPLE, world["conf"]["Name"]))

    @property
    def instruction(self) -> str:
        return f"Set the user name to {self.name}"

    def apply(self, world: World) -> None:
        world["conf"]["Name"] = self.name

    def next_step(self, desktop: Desktop) -> Step | None:
        if desktop.world["conf"]["Name"] == self.name:
            return None
        return (
            close_menu(desktop)
            or show_tab(desktop, "User")
            or fill_field(desktop, "Name", self.name)
            or click_on(desktop, "Save")
        )


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
