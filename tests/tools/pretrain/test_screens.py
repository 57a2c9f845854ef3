"""Random desktops: what they show, and how often."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from arpo.envs.desk.window import Dialog
from tools.pretrain.screens import busy_desktop, choose_by_kind


def test_rare_kinds_are_chosen_as_often_as_common_ones() -> None:
    """Weights: Slider 8, Field 1, app 0.1. The number of elements of a kind does not count."""
    rng = random.Random(0)
    elements = [("app", "app")] * 6 + [("Field", "field"), ("Slider", "slider")]
    found = Counter(choose_by_kind(rng, elements) for _ in range(4000))
    assert found["slider"] / 4000 == pytest.approx(8 / 9.1, abs=0.02)
    assert found["field"] / 4000 == pytest.approx(1 / 9.1, abs=0.02)


def test_busy_desktops_have_menus_dialogs_and_many_windows() -> None:
    desktops = [busy_desktop(random.Random(seed)) for seed in range(150)]
    assert sum(desktop.popup is not None for desktop in desktops) > 12
    assert sum(isinstance(desktop.front, Dialog) for desktop in desktops) > 5
    assert sum(len(desktop.windows) >= 4 for desktop in desktops) > 30
    kinds = {element.kind for desktop in desktops for element in desktop.visible_elements()}
    assert {"Slider", "choice", "DropDown", "Check", "Radio"} <= kinds
