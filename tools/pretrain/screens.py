"""Random desktops for lessons: quiet ones, as tasks begin, and busy ones.

A busy desktop has up to five overlapping windows, and often an open menu, a dialog, text under edit or a
scrolled list. Events choose the kind of element first, so that rare kinds occur as often as common ones.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from arpo.envs.desk.apps import APPS
from arpo.envs.desk.desktop import Desktop, Element
from arpo.envs.desk.random_tasks import random_windows, random_world
from arpo.envs.desk.words import PEOPLE, TEXTS

T = TypeVar("T")
_BUSY = 0.7  # share of busy desktops
_QUIET_CLICKS = (0, 0, 0, 1, 2, 3, 5)  # one is drawn
_COLUMNS, _ROWS = 9, 3  # windows begin in one of these
_MAX_BUSY_WINDOWS, _MAX_BUSY_EVENTS = 5, 6
# Weights of kinds: high for those on few screens or with many names, low for those on all screens.
_RARITY = {
    "app": 0.1, "close": 0.5, "title": 0.3, "Button": 0.4, "Label": 0.4, "Check": 2.0, "Cell": 2.0,
    "Item": 6.0, "Radio": 2.0, "DropDown": 2.0, "choice": 3.0, "Slider": 8.0,
}  # fmt: skip
# Elements which open a menu or a dialog, or change the page: the last event of a busy desktop.
_OPENERS = ("DropDown", "Button", "Item", "Tab", "Field")


def random_desktop(rng: random.Random) -> Desktop:
    """A desktop to ask questions about."""
    return busy_desktop(rng) if rng.random() < _BUSY else quiet_desktop(rng)


def quiet_desktop(rng: random.Random) -> Desktop:
    """A desktop with open windows, after a few random clicks."""
    desktop = Desktop(random_world(rng), APPS)
    for window in random_windows(rng, rng.choice(list(APPS))):
        desktop.launch(**window)
    for _ in range(rng.choice(_QUIET_CLICKS)):
        x, y = rng.choice(desktop.visible_elements()).centre
        rng.choice((desktop.click, desktop.click, desktop.click, desktop.double_click, desktop.right_click))(
            x, y
        )
    return desktop


def busy_desktop(rng: random.Random) -> Desktop:
    """A desktop with several windows after random events, the last one on an element of the front window."""
    desktop = Desktop(random_world(rng), APPS)
    for app in rng.sample(list(APPS), rng.randint(1, _MAX_BUSY_WINDOWS)):
        desktop.launch(app, rng.randrange(_COLUMNS), rng.randrange(_ROWS))
    for _ in range(rng.randrange(_MAX_BUSY_EVENTS)):
        _random_event(rng, desktop, [each for each in desktop.visible_elements() if each.kind != "close"])
    if tabs := [each for each in desktop.visible_elements() if each.kind == "Tab"]:
        desktop.click(*rng.choice(tabs).centre)
    if desktop.popup is None and (front := desktop.front) is not None and not front.modal:
        visible = [each for each in desktop.visible_elements() if front.contains(each.column, each.row)]
        _random_event(rng, desktop, [each for each in visible if each.kind in _OPENERS])
    return desktop


def choose_by_kind(rng: random.Random, elements: Sequence[tuple[str, T]]) -> T:
    """One of (kind, element): first a kind, rare ones more often, then an element of it."""
    kinds = sorted({kind for kind, _ in elements})
    [kind] = rng.choices(kinds, [_RARITY.get(kind, 1.0) for kind in kinds])
    return rng.choice([element for each, element in elements if each == kind])


def _random_event(rng: random.Random, desktop: Desktop, elements: Sequence[Element]) -> None:
    if not elements:
        return
    element = choose_by_kind(rng, [(each.kind, each) for each in elements])
    x, y = element.centre
    if element.kind == "Item":
        events = (desktop.click, desktop.double_click, desktop.right_click)
        if (event := rng.randrange(4)) < 3:
            events[event](x, y)
        else:
            desktop.scroll(x, y, rng.choice((1, 2, 2)))
        return
    desktop.click(x + rng.randrange(-3, 4) * (element.kind == "Slider") * 7, y)
    if element.kind == "Field" and rng.random() < 0.7:
        desktop.key(("ctrl", "a"))
        desktop.type(rng.choice((*TEXTS, *PEOPLE)))
