"""Questions about a screen, with worked answers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from arpo.actions import render
from arpo.envs.desk.desktop import Desktop
from desks import cell, click, desk
from tools.pretrain.reading import (
    Question,
    find,
    list_elements,
    point,
    read_kind,
    read_point,
    read_state,
    read_window,
)

pytestmark = pytest.mark.slow

Ask = Callable[[random.Random, Desktop], Question | None]


def asked(ask: Ask, desktop: Desktop, times: int = 300) -> dict[str, str]:
    """Instruction → answer, over many random choices."""
    found = [ask(random.Random(seed), desktop) for seed in range(times)]
    return {
        question.instruction: render([question.action], question.instruction)
        if question.action
        else question.answer
        for question in found
        if question is not None
    }


def sound() -> Desktop:
    desktop = desk("Conf")
    click(desktop, "Sound")
    return desktop


def test_elements_are_listed_in_reading_order_with_coordinates() -> None:
    assert list_elements(sound()) == (
        "Conf(63,21)Net(42,35)Look(70,35)Sound on(105,35)User(140,35)Volume(63,63)30(112,63)Volume(84,77)"
        "Mute(84,105)"
    )


def test_a_window_is_read_without_the_others() -> None:
    desktop = desk("Mail")
    desktop.launch("Note", 8, 2)
    assert asked(read_window, desktop)["Read Note"] == (
        "Note(91,35)New(70,49)Save(98,49)Edit(126,49)untitled(112,133)"
    )


def test_one_kind_is_read_with_the_text_of_fields_and_the_value_of_sliders() -> None:
    assert asked(read_kind, sound())["Read all slider"] == "30(84,77)"
    desktop = desk("Note")
    desktop.type("milk")
    assert asked(read_kind, desktop)["Read all field"] == "milk(112,77)"
    assert asked(read_kind, desktop)["Read all button"] == "New(42,35)Save(70,35)Edit(98,35)"


def test_a_point_is_read_as_its_element() -> None:
    found = asked(read_point, sound())
    assert {answer for asked_for, answer in found.items() if asked_for.endswith(",105")} == {"Mute"}
    assert "Sound on" in found.values() and "30" in found.values()


@pytest.mark.parametrize(
    ("question", "answer"),
    [("Read VPN", "on"), ("Read Wifi", "off"), ("Read Net", "on"), ("Read Look", "off")],
)
def test_switches_are_on_or_off(question: str, answer: str) -> None:
    assert asked(read_state, desk("Conf"))[question] == answer


def test_fields_cells_sliders_and_drop_downs_have_a_value() -> None:
    assert asked(read_state, sound())["Read Volume"] == "30"
    user = desk("Conf")
    click(user, "User")
    assert asked(read_state, user)["Read Lang"] == "English"
    assert asked(read_state, user)["Read Name"] == "Clara"
    sheet = desk("Calc")
    desktop_cells = asked(read_state, sheet, 600)
    assert desktop_cells["Read B1"] == "10" and desktop_cells["Read B2"] == "no"


def test_elements_are_pointed_at_in_the_words_of_the_solver() -> None:
    def click_at(thought: str, x: int, y: int) -> str:
        return f"Thought: {thought}\nAction: click(start_box='({x},{y})')"

    found = asked(point, desk("Calc"), 800)
    assert found["Click B2"] == click_at("Click B2", *cell(desk("Calc"), "B2"))
    assert found["Close Calc"] == click_at("Close Calc", 189, 21)
    assert found["Open Mail"] == click_at("Open Mail", 70, 161)
    found = asked(point, sound(), 800)
    assert found["Set 0"] == click_at("Set 0", 45, 77) and found["Set 100"] == click_at("Set 100", 115, 77)
    found = asked(point, desk("Mail"), 800)
    assert found["Click Anna"] == click_at("Click Anna", 105, 63)
    assert found["Click button 2 of Mail"] == click_at("Click button 2 of Mail", 77, 49)


def test_a_name_in_two_windows_is_told_with_its_window() -> None:
    desktop = desk("Mail")
    desktop.launch("File", 8, 3)
    found = asked(point, desktop, 800)
    assert "Click New" not in found
    assert {"Click New of Mail", "Click New of File"} <= set(found)


def test_elements_are_found_by_their_names_in_any_order() -> None:
    found = asked(find, sound(), times=600)
    assert found["Select Net"] == "Net(42,35)"
    assert found["Select User Look"] == "User(140,35)Look(70,35)"
    assert not any("Volume" in instruction for instruction in found)  # a caption and a slider have this name
    question = find(random.Random(0), sound())
    assert question is not None
    assert len(question.targets) == len(question.instruction.split()) - 1
