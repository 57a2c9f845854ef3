"""The goal on the order page."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import ClassVar

from arpo.envs.desk.apps.web import Web
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.goals.base import (
    Step,
    choose,
    click,
    click_on,
    close_menu,
    fill_field,
    find_element,
    open_app,
)
from arpo.envs.desk.words import CITIES, ITEMS, PEOPLE, SIZES
from arpo.envs.desk.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOrder:
    app: ClassVar[str] = "Web"
    name: str
    item: str
    city: str
    size: str
    gift: bool

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> PlaceOrder:
        return cls(
            name=rng.choice(PEOPLE), item=rng.choice(ITEMS), city=rng.choice(CITIES), size=rng.choice(SIZES),
            gift=rng.random() < 0.5,
        )  # fmt: skip

    @property
    def instruction(self) -> str:
        gift = " as a gift" if self.gift else ""
        return f"Order a {self.size} {self.item} for {self.name} in {self.city}{gift}"

    def apply(self, world: World) -> None:
        world["orders"].append(asdict(self))

    def next_step(self, desktop: Desktop) -> Step | None:
        if asdict(self) in desktop.world["orders"]:
            return None
        front = desktop.front
        if not isinstance(front, Web):
            return close_menu(desktop) or open_app(desktop, "Web")
        if front.submitted:
            return click_on(desktop, "New")
        if front.item != self.item:
            return choose(desktop, self.item) or self._open_menu(desktop, "Item", 0)
        if front.city != self.city:
            return choose(desktop, self.city) or self._open_menu(desktop, "City", 1)
        if step := close_menu(desktop) or fill_field(desktop, "Name", self.name):
            return step
        if front.size != self.size:
            return click_on(desktop, self.size, "Radio")
        return click_on(desktop, "Gift", "Check") if front.gift != self.gift else click_on(desktop, "Submit")

    def _open_menu(self, desktop: Desktop, label: str, nth: int) -> Step:
        element = find_element(desktop, "", "DropDown", nth)
        assert element is not None
        return click(element, f"Click {label}")
