"""The goal on the order page."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import ClassVar

from arpo.envs.desk.apps.web import Web
from arpo.envs.desk.desktop import Desktop, World
from arpo.envs.desk.goals.base import Step, choose, click, fill, no_menu, open_app, press, see
from arpo.envs.desk.words import CITIES, ITEMS, PEOPLE, SIZES


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOrder:
    app: ClassVar[str] = "Web"
    name: str
    item: str
    city: str
    size: str
    gift: bool

    @classmethod
    def invent(cls, rng: random.Random, world: World) -> PlaceOrder:
        return cls(
            name=rng.choice(PEOPLE), item=rng.choice(ITEMS), city=rng.choice(CITIES), size=rng.choice(SIZES),
            gift=rng.random() < 0.5,
        )  # fmt: skip

    @property
    def instruction(self) -> str:
        gift = " as a gift" if self.gift else ""
        return f"Order a {self.size} {self.item} for {self.name} in {self.city}{gift}"

    def reach(self, world: World) -> None:
        world["orders"].append(asdict(self))

    def next(self, desktop: Desktop) -> Step | None:
        if asdict(self) in desktop.world["orders"]:
            return None
        front = desktop.front
        if not isinstance(front, Web):
            return no_menu(desktop) or open_app(desktop, "Web")
        if front.sent:
            return press(desktop, "New")
        if front.item != self.item:
            return choose(desktop, self.item) or self._open_menu(desktop, "Item", 0)
        if front.city != self.city:
            return choose(desktop, self.city) or self._open_menu(desktop, "City", 1)
        if step := no_menu(desktop) or fill(desktop, "Name", self.name):
            return step
        if front.size != self.size:
            return press(desktop, self.size, "Radio")
        return press(desktop, "Gift", "Check") if front.gift != self.gift else press(desktop, "Submit")

    def _open_menu(self, desktop: Desktop, label: str, nth: int) -> Step:
        part = see(desktop, "", "DropDown", nth)
        assert part is not None
        return click(part, f"Click {label}")
