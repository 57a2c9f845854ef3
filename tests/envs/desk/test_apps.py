"""The six applications, operated through their windows."""

from typing import Any

import pytest

from arpo.actions import Hotkey, Type
from arpo.envs.desk.apps.calc import Calc
from arpo.envs.desk.apps.files import Files
from arpo.envs.desk.apps.mail import ComposeWindow, Mail
from arpo.envs.desk.apps.notes import Notes
from arpo.envs.desk.apps.web import Web
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.env import perform
from arpo.envs.desk.window import Dialog
from desks import WORLD, cell, click, desk, find, titles


def name_it(desktop: Desktop, name: str) -> None:
    assert isinstance(desktop.front, Dialog)
    desktop.type(name)
    click(desktop, "OK")


def choose(desktop: Desktop, item: str, choice: str) -> None:
    desktop.right_click(*find(desktop, item, "Item").centre)
    click(desktop, choice, kind="choice")


def files(desktop: Desktop) -> dict[str, dict[str, str]]:
    held: dict[str, dict[str, str]] = desktop.world["files"]
    return held


# files


def test_folders_come_first_and_open_by_double_click() -> None:
    desktop = desk("File")
    window = desktop.front
    assert isinstance(window, Files) and window.entries() == ["Work", "Old", "report", "budget"]
    desktop.double_click(*find(desktop, "Work").centre)
    assert window.title == "File Work" and window.entries() == ["poem"]
    click(desktop, "Up")
    assert window.title == "File"


def test_a_file_opens_in_the_editor() -> None:
    desktop = desk("File")
    desktop.double_click(*find(desktop, "report").centre)
    assert isinstance(desktop.front, Notes) and desktop.front.edit.text == "milk"
    click(desktop, "File", kind="app")
    choose(desktop, "budget", "Open")
    assert titles(desktop) == ["File", "Note budget"]
    click(desktop, "File", kind="app")
    click(desktop, "Work")
    desktop.key(("enter",))
    desktop.double_click(*find(desktop, "poem").centre)
    assert isinstance(desktop.front, Notes) and desktop.front.edit.text == "tea"


@pytest.mark.parametrize("how", ["button", "key", "menu"])
def test_a_file_is_deleted_after_a_question(how: str) -> None:
    desktop = desk("File")
    if how == "menu":
        choose(desktop, "report", "Delete")
    else:
        click(desktop, "report")
        click(desktop, "Del") if how == "button" else desktop.key(("delete",))
    assert "report" in files(desktop)[""]
    click(desktop, "Yes")
    assert files(desktop) == {"": {"budget": "bread"}, "Work": {"poem": "tea"}, "Old": {}}
    desktop.key(("delete",))
    assert not isinstance(desktop.front, Dialog)  # nothing is selected any more


def test_a_folder_is_deleted_with_its_files() -> None:
    desktop = desk("File")
    choose(desktop, "Work", "Delete")
    click(desktop, "Yes")
    assert files(desktop) == {"": {"report": "milk", "budget": "bread"}, "Old": {}}
    assert isinstance(desktop.front, Files) and desktop.front.entries() == ["Old", "report", "budget"]


def test_a_file_is_renamed_by_menu_or_key() -> None:
    desktop = desk("File")
    choose(desktop, "report", "Rename")
    name_it(desktop, "essay")
    assert files(desktop)[""] == {"budget": "bread", "essay": "milk"}
    click(desktop, "budget")
    desktop.key(("f2",))
    name_it(desktop, "draft")
    assert files(desktop)[""] == {"draft": "bread", "essay": "milk"}
    choose(desktop, "Work", "Rename")
    name_it(desktop, "Home")
    assert files(desktop)["Home"] == {"poem": "tea"} and "Work" not in files(desktop)


@pytest.mark.parametrize(
    ("item", "name"),
    [("report", "budget"), ("report", "report"), ("report", "Work"), ("Work", "Old"), ("Work", "report")],
)
def test_a_name_in_use_is_not_given_again(item: str, name: str) -> None:
    desktop = desk("File")
    choose(desktop, item, "Rename")
    name_it(desktop, name)
    assert desktop.world == WORLD and isinstance(desktop.front, Files)


@pytest.mark.parametrize("name", ["Work", "report"])
def test_a_new_folder_takes_no_name_in_use(name: str) -> None:
    desktop = desk("File")
    click(desktop, "New")
    name_it(desktop, name)
    assert desktop.world == WORLD


def test_a_name_may_be_used_again_in_another_folder() -> None:
    desktop = desk("File")
    desktop.double_click(*find(desktop, "Work").centre)
    choose(desktop, "poem", "Rename")
    name_it(desktop, "report")
    assert files(desktop)["Work"] == {"report": "tea"}
    click(desktop, "New")
    name_it(desktop, "Trips")  # folders are made at the top, wherever one is
    assert files(desktop)["Trips"] == {} and files(desktop)[""] == {"report": "milk", "budget": "bread"}


def test_a_file_is_dropped_on_a_folder() -> None:
    desktop = desk("File")
    desktop.drag(find(desktop, "report").centre, find(desktop, "Work").centre)
    assert files(desktop) == {"": {"budget": "bread"}, "Work": {"poem": "tea", "report": "milk"}, "Old": {}}


@pytest.mark.parametrize(
    ("item", "target"),
    [("report", "budget"), ("Work", "Old"), ("report", "New"), ("report", "Mail"), ("New", "Work")],
)
def test_nothing_else_can_be_dropped_and_nowhere_else(item: str, target: str) -> None:
    desktop = desk("File")
    desktop.drag(find(desktop, item).centre, find(desktop, target).centre)
    assert desktop.world == WORLD


def test_a_drop_overwrites_no_file() -> None:
    desktop = desk("File")
    files(desktop)["Work"]["report"] = "salmon"
    desktop.drag(find(desktop, "report").centre, find(desktop, "Work").centre)
    assert files(desktop)["Work"]["report"] == "salmon" and files(desktop)[""]["report"] == "milk"


def test_a_long_list_scrolls_by_wheel_and_bar_and_not_beyond_its_ends() -> None:
    desktop = desk("File")
    files(desktop)[""] |= {f"file{i}": "" for i in range(5)}  # two folders and seven files; six rows
    window = desktop.front
    assert isinstance(window, Files)
    x, y = 10 * 7, 5 * 14
    desktop.scroll(x, y, -2)
    assert window.top == 0
    desktop.scroll(x, y, 2)
    assert window.top == 2 and find(desktop, "report").row == window.row + 2
    desktop.scroll(x, y, 2)
    assert window.top == 3
    desktop.scroll(x, 160, -2)  # over the task bar
    assert window.top == 3
    desktop.click(27 * 7, 4 * 14)  # the upper half of the bar
    assert window.top == 2
    desktop.click(27 * 7, 8 * 14)
    assert window.top == 3
    choose(desktop, "file4", "Delete")
    click(desktop, "Yes")
    assert window.top == 2


def test_a_long_name_stays_in_its_row() -> None:
    desktop = desk("File")
    before = desktop.draw(224, 168).pixels
    choose(desktop, "report", "Rename")
    name_it(desktop, "w" * 300)
    after = desktop.draw(224, 168).pixels
    assert (before[:, 28 * 7 :] == after[:, 28 * 7 :]).all()
    choose(desktop, "w" * 300, "Delete")
    click(desktop, "Yes")
    assert files(desktop)[""] == {"budget": "bread"}


# notes


def test_a_new_note_is_saved_under_a_name() -> None:
    desktop = desk("Note")
    desktop.type("honey")
    desktop.key(("ctrl", "s"))
    name_it(desktop, "diary")
    assert files(desktop)[""]["diary"] == "honey" and titles(desktop) == ["Note diary"]
    desktop.type(" tea")
    click(desktop, "Save")
    assert files(desktop)[""]["diary"] == "honey tea"
    desktop.key(("ctrl", "n"))
    assert titles(desktop) == ["Note"] and files(desktop)[""]["diary"] == "honey tea"


def test_a_note_takes_no_folders_name() -> None:
    desktop = desk("Note")
    click(desktop, "Save")
    name_it(desktop, "Work")
    assert desktop.world == WORLD and titles(desktop) == ["Note"]


def test_a_deleted_file_that_is_still_open_can_be_saved_again() -> None:
    desktop = desk("File")
    desktop.double_click(*find(desktop, "report").centre)
    click(desktop, "File", kind="app")
    choose(desktop, "report", "Delete")
    click(desktop, "Yes")
    click(desktop, "Note", kind="app")
    desktop.key(("ctrl", "s"))
    assert files(desktop)[""] == {"budget": "bread", "report": "milk"}


def test_a_file_of_a_deleted_folder_can_be_saved_again() -> None:
    desktop = desk("File")
    desktop.double_click(*find(desktop, "Work").centre)
    desktop.double_click(*find(desktop, "poem").centre)
    click(desktop, "File", kind="app")
    click(desktop, "Up")
    choose(desktop, "Work", "Delete")
    click(desktop, "Yes")
    assert "Work" not in files(desktop)
    click(desktop, "Note", kind="app")
    click(desktop, "Save")
    assert files(desktop)["Work"] == {"poem": "tea"}


def test_the_edit_menu() -> None:
    desktop = desk("Note")
    desktop.type("rice")
    for choice in ("All", "Copy"):
        click(desktop, "Edit", choice)
    desktop.key(("end",))
    click(desktop, "Edit", "Paste")
    notes = desktop.front
    assert isinstance(notes, Notes) and notes.edit.text == "ricerice"
    desktop.key(("shift", "home"))
    click(desktop, "Edit", "Cut")
    assert notes.edit.text == "" and desktop.clipboard == "ricerice"
    desktop.type("tea")
    click(desktop, "Edit", "Clear")
    assert notes.edit.text == ""


def test_a_typed_newline_is_the_enter_key_and_a_tab_the_tab_key() -> None:
    desktop = desk("Mail")
    click(desktop, "New")
    perform(desktop, Type(text="Anna\tlunch\tmilk\nbread"))
    composer = desktop.front
    assert isinstance(composer, ComposeWindow)
    assert (composer.to.text, composer.subject.text, composer.body.text) == ("Anna", "lunch", "milkbread")
    desktop = desk("File")
    click(desktop, "New")
    perform(desktop, Type(text="Trips\n\r\n"))
    assert files(desktop)["Trips"] == {} and titles(desktop) == ["File"]
    desktop = desk("File")
    click(desktop, "New")
    perform(desktop, Type(text="Trips", submit=True))
    assert files(desktop)["Trips"] == {} and titles(desktop) == ["File"]


# mail


def test_a_mail_is_selected_read_flagged_and_deleted() -> None:
    desktop = desk("Mail")
    click(desktop, "Anna   lunch")
    assert find(desktop, "rice", "Label")
    click(desktop, "Flag")
    assert desktop.world["mail"]["In"][0]["flag"] is True
    click(desktop, "Flag")
    assert desktop.world["mail"]["In"][0]["flag"] is False
    desktop.key(("delete",))
    assert [mail["from"] for mail in desktop.world["mail"]["In"]] == ["Boris"]
    assert [mail["from"] for mail in desktop.world["mail"]["Trash"]] == ["Anna"]
    click(desktop, "Del")  # nothing is selected
    assert len(desktop.world["mail"]["In"]) == 1


def test_without_a_selection_the_buttons_do_nothing() -> None:
    desktop = desk("Mail")
    click(desktop, "Reply", "Del", "Flag")
    assert desktop.world == WORLD and titles(desktop) == ["Mail"]


def test_a_mail_is_composed_and_sent() -> None:
    desktop = desk("Mail")
    click(desktop, "New")
    desktop.type("Nora")
    click(desktop, "Sub", kind="Field")
    desktop.type("trip")
    click(desktop, "Body", kind="Field")
    desktop.type("olives")
    click(desktop, "Send")
    assert desktop.world["mail"]["Sent"] == [{"to": "Nora", "subject": "trip", "body": "olives"}]
    assert titles(desktop) == ["Mail"]


def test_a_mail_without_recipient_is_not_sent_and_a_closed_one_is_lost() -> None:
    desktop = desk("Mail")
    click(desktop, "New", "Send")
    assert titles(desktop) == ["Mail", "New mail"]
    desktop.type("Nora")
    click(desktop, "x")
    assert desktop.world == WORLD and titles(desktop) == ["Mail"]


def test_several_compose_windows_can_be_open() -> None:
    desktop = desk("Mail")
    desktop.key(("ctrl", "n"))
    desktop.type("Nora")
    click(desktop, "Mail", kind="app")
    desktop.key(("ctrl", "n"))
    desktop.type("Luis")
    click(desktop, "Send")
    assert [mail["to"] for mail in desktop.world["mail"]["Sent"]] == ["Luis"]
    desktop.key(("alt", "tab"))
    click(desktop, "Send")
    assert [mail["to"] for mail in desktop.world["mail"]["Sent"]] == ["Luis", "Nora"]


def test_a_reply_fills_in_recipient_and_subject() -> None:
    desktop = desk("Mail")
    click(desktop, "Boris  rent", "Reply")
    desktop.type("tea")
    click(desktop, "Send")
    assert desktop.world["mail"]["Sent"] == [{"to": "Boris", "subject": "rent", "body": "tea"}]


def test_a_sent_mail_can_be_deleted_and_nothing_leaves_the_trash() -> None:
    desktop = desk("Mail")
    click(desktop, "Anna   lunch", "Reply", "Send")
    click(desktop, "Sent", "Anna   lunch")
    click(desktop, "Reply", "Flag")  # these are for the inbox
    click(desktop, "Del")
    assert desktop.world["mail"]["Sent"] == []
    assert desktop.world["mail"]["Trash"] == [{"to": "Anna", "subject": "lunch", "body": ""}]
    click(desktop, "Trash", "Anna   lunch", "Del", "Reply", "Flag")
    desktop.key(("delete",))
    assert len(desktop.world["mail"]["Trash"]) == 1 and titles(desktop) == ["Mail"]
    assert isinstance(desktop.front, Mail) and desktop.front.selected == 0
    click(desktop, "In", kind="Tab")
    assert desktop.front.selected == -1


def test_a_full_inbox_scrolls() -> None:
    desktop = desk("Mail")
    desktop.world["mail"]["In"] += [
        {"from": name, "subject": "exam", "body": "", "flag": False} for name in ("Clara", "David", "Elena")
    ]
    desktop.scroll(10 * 7, 5 * 14, 2)
    labels = [element.label for element in desktop.visible_elements() if element.kind == "Item"]
    assert labels == ["Boris  rent", "Clara  exam", "David  exam", "Elena  exam"]
    click(desktop, "Elena  exam", "Del")
    assert [mail["from"] for mail in desktop.world["mail"]["Trash"]] == ["Elena"]
    assert find(desktop, "Anna   lunch")


# settings


def test_settings_change_at_once() -> None:
    desktop = desk("Conf")
    click(desktop, "Wifi", "VPN")
    click(desktop, "Look", "Ocean", "Small", "Large")
    click(desktop, "Sound", "Mute")
    click(desktop, "User", "English", "Greek")
    expected: dict[str, Any] = {
        "Wifi": True, "VPN": False, "Theme": "Ocean", "Text": "Large", "Mute": True, "Lang": "Greek",
    }  # fmt: skip
    assert desktop.world["conf"] == {**WORLD["conf"], **expected}


@pytest.mark.parametrize("how", ["button", "key"])
def test_a_name_counts_when_it_is_saved(how: str) -> None:
    desktop = desk("Conf")
    click(desktop, "User")
    click(desktop, "Name", kind="Field")
    desktop.key(("ctrl", "a"))
    desktop.type("Hugo")
    assert desktop.world["conf"]["Name"] == "Clara"
    click(desktop, "Save") if how == "button" else desktop.key(("enter",))
    assert desktop.world["conf"]["Name"] == "Hugo"


# spreadsheet


def enter(desktop: Desktop, name: str, text: str) -> None:
    desktop.click(*cell(desktop, name))
    perform(desktop, Type(text=text, submit=True))


def test_a_value_replaces_what_was_in_the_cell() -> None:
    desktop = desk("Calc")
    enter(desktop, "A1", "25")
    enter(desktop, "C4", " 007 ")
    enter(desktop, "D5", "-12")
    assert desktop.world["calc"] == {"A1": 25, "A2": 4, "B1": 10, "C4": 7, "D5": -12}


@pytest.mark.parametrize("text", ["milk", "٣", "²", "1.5", "1e3", "--5", "9" * 16, "9" * 5000, "1_000"])
def test_an_entry_that_is_not_a_number_is_text(text: str) -> None:
    desktop = desk("Calc")
    enter(desktop, "A1", text)
    assert desktop.world["calc"]["A1"] == text
    desktop.click(*cell(desktop, "A4"))
    click(desktop, "Sum")
    assert desktop.world["calc"]["A4"] == 4
    desktop.draw(224, 168)


def test_a_value_counts_on_enter_on_another_cell_and_on_closing() -> None:
    desktop = desk("Calc")
    desktop.click(*cell(desktop, "C1"))
    desktop.type("5")
    assert "C1" not in desktop.world["calc"]
    desktop.click(*cell(desktop, "C2"))
    assert desktop.world["calc"]["C1"] == 5
    desktop.type("6")
    perform(desktop, Hotkey(keys=("ctrl", "s")))
    assert desktop.world["calc"]["C2"] == 6
    desktop.click(*cell(desktop, "C3"))
    desktop.type("7")
    click(desktop, "x")
    assert desktop.world["calc"] == {**WORLD["calc"], "C1": 5, "C2": 6, "C3": 7}


def test_escape_discards_the_entry() -> None:
    desktop = desk("Calc")
    desktop.key(("esc",))
    desktop.type("4")  # no cell is selected
    desktop.click(*cell(desktop, "A1"))
    desktop.type("99")
    desktop.key(("esc",))
    desktop.click(*cell(desktop, "B2"))
    assert desktop.world == WORLD


def test_an_emptied_cell_is_gone() -> None:
    desktop = desk("Calc")
    desktop.click(*cell(desktop, "A1"))
    desktop.key(("backspace",))
    desktop.key(("enter",))
    desktop.click(*cell(desktop, "B1"))
    click(desktop, "Clear")
    assert desktop.world["calc"] == {"A2": 4}


def test_a_sum_adds_the_numbers_above() -> None:
    desktop = desk("Calc")
    enter(desktop, "A3", "milk")
    desktop.click(*cell(desktop, "A5"))
    click(desktop, "Sum")
    desktop.click(*cell(desktop, "A1"))
    click(desktop, "Sum")
    assert desktop.world["calc"] == {"A1": 0, "A2": 4, "A3": "milk", "A5": 7, "B1": 10}


def test_without_a_cell_the_buttons_do_nothing() -> None:
    desktop = desk("Calc")
    click(desktop, "Sum", "Clear")
    click(desktop, "Entry", kind="Field")
    perform(desktop, Type(text="5", submit=True))
    assert desktop.world == WORLD
    assert isinstance(desktop.front, Calc) and desktop.front.cell == ""


def test_a_value_is_copied_by_the_clipboard() -> None:
    desktop = desk("Calc")
    desktop.click(*cell(desktop, "B1"))
    desktop.key(("ctrl", "c"))
    desktop.click(*cell(desktop, "D3"))
    desktop.key(("ctrl", "v"))
    desktop.key(("enter",))
    assert desktop.world["calc"] == {**WORLD["calc"], "D3": 10}


# browser


def test_an_order_is_filled_in_and_submitted() -> None:
    desktop = desk("Web")
    click(desktop, "Name", kind="Field")
    desktop.type("Nora")
    desktop.click(
        *next(element.centre for element in desktop.visible_elements() if element.kind == "DropDown")
    )
    click(desktop, "Sofa")
    click(desktop, "", kind="DropDown")
    click(desktop, "Lima", "Medium", "Gift", "Submit")
    order = {"name": "Nora", "item": "Sofa", "city": "Lima", "size": "Medium", "gift": True}
    assert desktop.world["orders"] == [order]
    assert find(desktop, "Thanks")


def test_a_submitted_order_is_final() -> None:
    desktop = desk("Web")
    click(desktop, "Submit")
    do_nothing = {"name": "", "item": "", "city": "", "size": "", "gift": False}
    click(desktop, "New")
    click(desktop, "Gift", "Clear")
    assert isinstance(desktop.front, Web) and not desktop.front.gift
    click(desktop, "x")
    assert desktop.world["orders"] == [do_nothing]
    click(desktop, "Web", kind="app")
    click(desktop, "Submit")
    assert desktop.world["orders"] == [do_nothing, do_nothing]
