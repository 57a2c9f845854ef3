"""The desktop: stacked windows, event dispatch, menus, dialogs, keys and visible elements."""

from itertools import pairwise

import numpy as np
import pytest

from arpo.envs.desk.apps.conf import Conf
from arpo.envs.desk.apps.files import Files
from arpo.envs.desk.apps.mail import ComposeWindow
from arpo.envs.desk.apps.notes import Notes
from arpo.envs.desk.apps.web import Web
from arpo.envs.desk.canvas import Colour
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.widgets import Field
from arpo.envs.desk.window import Dialog
from desks import cell, click, desk, find, titles


def two_windows() -> Desktop:
    """Conf at cells (0, 0) to (23, 8); Web in front of it at (8, 2) to (31, 10)."""
    desktop = desk()
    desktop.launch("Conf", 0, 0)
    desktop.launch("Web", 8, 2)
    return desktop


def test_a_click_goes_to_the_window_on_top_and_raises_the_one_below() -> None:
    desktop = two_windows()
    desktop.click(10 * 7, 2 * 14 + 7)  # both windows are here
    assert titles(desktop) == ["Conf", "Web Order"]
    desktop.click(3 * 7, 0)  # Conf's title
    assert titles(desktop) == ["Web Order", "Conf"]
    desktop.click(30 * 7, 10 * 14)  # the part of Web not covered by Conf
    assert titles(desktop) == ["Conf", "Web Order"]


def test_double_and_right_clicks_raise_a_window_too() -> None:
    for event in (Desktop.double_click, Desktop.right_click):
        desktop = desk()
        desktop.launch("File", 0, 0)
        desktop.launch("Calc", 8, 3)
        event(desktop, 20, 35)  # the row of the folder Work, left of Calc
        assert titles(desktop)[-1].startswith("File")


def test_a_double_click_in_a_text_sets_the_caret() -> None:
    desktop = desk()
    desktop.open_file("", "report")
    notes = desktop.front
    assert isinstance(notes, Notes)
    x, y = find(desktop, "Text", "Field").column * 7, find(desktop, "Text", "Field").row * 14
    desktop.double_click(x + 2 * 7 + 3, y + 3)
    assert notes.edit.caret == 2


def test_a_covered_widget_receives_no_click() -> None:
    desktop = two_windows()
    wifi = (3 * 7, 3 * 14 + 7)  # left of Web
    vpn_end = (9 * 7, 4 * 14 + 7)  # under Web
    desktop.click(*vpn_end)
    assert desktop.world["conf"]["VPN"] is True and titles(desktop)[-1] == "Web Order"
    desktop.click(*wifi)
    assert desktop.world["conf"]["Wifi"] is True and titles(desktop)[-1] == "Conf"
    desktop.click(*vpn_end)
    assert desktop.world["conf"]["VPN"] is False


def test_the_close_button_closes_a_window() -> None:
    desktop = two_windows()
    desktop.click(31 * 7 + 3, 2 * 14 + 7)
    assert titles(desktop) == ["Conf"]
    desktop.click(22 * 7, 7)
    assert titles(desktop) == []
    assert desktop.front is None


@pytest.mark.parametrize(
    ("by", "position"),
    [
        ((0, 0), (4, 1)),
        ((14, 14), (6, 2)),
        ((7, 0), (4, 1)),  # an odd column snaps to the left
        ((20, 0), (6, 1)),
        ((500, 500), (8, 2)),  # 24 by 9 cells stay on the screen, above the task bar
        ((-500, -500), (0, 0)),
    ],
)
def test_dragging_the_title_moves_a_window_on_the_grid(
    by: tuple[int, int], position: tuple[int, int]
) -> None:
    desktop = desk("Web")
    start = (9 * 7, 1 * 14 + 7)
    desktop.drag(start, (start[0] + by[0], start[1] + by[1]))
    front = desktop.front
    assert front is not None and (front.column, front.row) == position
    desktop.click(7 * (front.column + 1), 14 * (front.row + 7) + 7)  # its widgets came along: Submit
    assert len(desktop.world["orders"]) == 1


def test_dragging_raises_a_window_and_nothing_happens_on_the_wallpaper() -> None:
    desktop = two_windows()
    desktop.drag((7, 7), (21, 21))
    assert titles(desktop) == ["Web Order", "Conf"]
    desktop.drag((31 * 7, 0), (0, 0))
    desktop.click(31 * 7, 0)
    assert titles(desktop) == ["Web Order", "Conf"]


def test_the_task_bar_opens_raises_and_marks_applications() -> None:
    desktop = desk()
    click(desktop, "Calc", kind="app")
    click(desktop, "Mail", kind="app")
    assert titles(desktop) == ["Calc", "Mail"]
    click(desktop, "Calc", kind="app")
    assert titles(desktop) == ["Mail", "Calc"]
    bar = desktop.draw(224, 168).pixels[156]
    faces = [bar[28 * i + 1] for i in range(6)]  # File Note Mail Conf Calc Web
    idle, running = Colour.EDGE, Colour.TITLE
    assert faces == [idle, idle, running, idle, running, idle]
    desktop.click(31 * 7, 160)  # right of the last name
    assert titles(desktop) == ["Mail", "Calc"]


def test_an_application_opens_once_and_inside_the_screen() -> None:
    desktop = desk()
    window = desktop.launch("File", 99, -4)
    assert (window.column, window.row) == (8, 0)
    assert desktop.launch("File", 0, 0) is window
    assert (window.column, window.row) == (8, 0)


def test_a_dialog_blocks_all_other_windows() -> None:
    desktop = desk("Conf", "File")
    click(desktop, "report", "Del")
    assert isinstance(desktop.front, Dialog) and desktop.front.title == "Delete report"
    before = desktop.draw(224, 168).pixels
    click(desktop, "Conf", kind="app")
    desktop.click(5 * 7, 2 * 14 + 7)  # New, in the window behind
    desktop.double_click(6 * 7, 5 * 14)
    desktop.right_click(6 * 7, 5 * 14)
    desktop.scroll(6 * 7, 5 * 14, 2)
    desktop.drag((6 * 7, 20), (20 * 7, 90))
    desktop.key(("alt", "tab"))
    desktop.open_app("Web")
    assert (desktop.draw(224, 168).pixels == before).all()
    click(desktop, "No")
    assert titles(desktop) == ["Conf", "File"] and "report" in desktop.world["files"][""]


@pytest.mark.parametrize("answer", ["x", "No", ("esc",), ("alt", "f4")])
def test_a_dialog_can_be_cancelled(answer: str | tuple[str, ...]) -> None:
    desktop = desk("File")
    click(desktop, "report", "Del")
    if isinstance(answer, tuple):
        desktop.key(answer)
    else:
        click(desktop, answer)
    assert titles(desktop) == ["File"] and "report" in desktop.world["files"][""]


@pytest.mark.parametrize("answer", ["Yes", ("enter",)])
def test_a_dialog_can_be_accepted(answer: str | tuple[str, ...]) -> None:
    desktop = desk("File")
    click(desktop, "report", "Del")
    if isinstance(answer, tuple):
        desktop.key(answer)
    else:
        click(desktop, answer)
    assert titles(desktop) == ["File"] and "report" not in desktop.world["files"][""]


def test_a_dialog_does_not_accept_an_empty_name() -> None:
    desktop = desk("File")
    click(desktop, "New")
    desktop.key(("enter",))
    click(desktop, "OK")
    assert isinstance(desktop.front, Dialog)
    desktop.type("Trips")
    desktop.key(("enter",))
    assert desktop.world["files"]["Trips"] == {} and isinstance(desktop.front, Files)


def test_a_dialog_moves_too() -> None:
    desktop = desk("File")
    click(desktop, "New")
    desktop.drag((9 * 7, 3 * 14 + 7), (0, 0))
    front = desktop.front
    assert isinstance(front, Dialog) and (front.column, front.row) == (0, 0)


def test_a_menu_takes_the_next_click_anywhere() -> None:
    desktop = desk("Web")
    drop_down = find(desktop, "", "DropDown")
    desktop.click(*drop_down.centre)
    assert desktop.popup is not None
    assert [label for label, _ in desktop.popup.choices] == [
        "Paris",
        "Rome",
        "Oslo",
        "Cairo",
        "Lima",
        "Tokyo",
    ]
    click(desktop, "Submit")
    assert desktop.popup is None and desktop.world["orders"] == []
    desktop.click(*drop_down.centre)
    click(desktop, "Oslo")
    assert isinstance(desktop.front, Web) and desktop.front.city == "Oslo"


def test_a_menu_closes_with_escape_and_swallows_other_keys() -> None:
    desktop = desk("Conf")
    click(desktop, "Look", "Small")
    for keys in (("enter",), ("alt", "f4"), ("a",)):
        desktop.key(keys)
    assert desktop.popup is not None and titles(desktop) == ["Conf"]
    desktop.key(("esc",))
    assert desktop.popup is None and desktop.world["conf"]["Text"] == "Small"


def test_a_menu_stays_on_the_screen() -> None:
    desktop = desk()
    desktop.open_menu(31, 11, (("One", lambda: None), ("Two", lambda: None)))
    assert desktop.popup is not None and (desktop.popup.column, desktop.popup.row) == (24, 9)


def test_opening_an_application_closes_a_menu() -> None:
    desktop = desk("Web")
    click(desktop, "", kind="DropDown")
    desktop.open_app("Mail")
    assert desktop.popup is None and titles(desktop) == ["Web Order", "Mail"]
    desktop.open_app("Solitaire")
    assert titles(desktop) == ["Web Order", "Mail"]


def test_a_context_menu_selects_its_item() -> None:
    desktop = desk("File")
    desktop.right_click(*find(desktop, "budget").centre)
    assert isinstance(desktop.front, Files) and desktop.front.selected == "budget"
    assert desktop.popup is not None
    assert [label for label, _ in desktop.popup.choices] == ["Open", "Rename", "Delete"]
    desktop.right_click(*find(desktop, "New").centre)
    assert desktop.popup is None


def test_keys_close_and_change_windows() -> None:
    desktop = desk("Conf", "Web", "Mail")
    desktop.key(("alt", "tab"))
    assert titles(desktop) == ["Web Order", "Mail", "Conf"]
    desktop.key(("alt", "f4"))
    assert titles(desktop) == ["Web Order", "Mail"]
    desktop.key(("ctrl", "n"))
    assert titles(desktop) == ["Web Order", "Mail", "New mail"]


def test_tab_goes_round_the_fields_and_selects_them() -> None:
    desktop = desk("Mail")
    click(desktop, "Anna   lunch", "Reply")
    composer = desktop.front
    assert isinstance(composer, ComposeWindow) and composer.focus is composer.body
    desktop.key(("tab",))
    assert composer.focus is composer.to and composer.to.selected == "Anna"
    desktop.key(("tab",))
    desktop.type("rent")
    assert composer.subject.text == "rent"


def test_the_clipboard_goes_from_window_to_window() -> None:
    desktop = desk("Note")
    desktop.type("milk bread")
    for keys in (("shift", "home"), ("ctrl", "x")):
        desktop.key(keys)
    click(desktop, "Web", kind="app")
    click(desktop, "Name", kind="Field")
    desktop.key(("ctrl", "v"))
    desktop.key(("ctrl", "v"))
    assert isinstance(desktop.front, Web) and desktop.front.name.text == "milk breadmilk bread"
    click(desktop, "Note", kind="app")
    assert isinstance(desktop.front, Notes) and desktop.front.edit.text == ""
    desktop.key(("ctrl", "c"))
    assert desktop.clipboard == ""


def test_a_click_moves_the_caret_and_a_drag_selects() -> None:
    desktop = desk("Note")
    desktop.type("abcdefghijklmnopqrstuvwxyz1234")  # 24 columns: "yz1234" is on the second line
    notes = desktop.front
    assert isinstance(notes, Notes)
    left, top = 4 * 7, 3 * 14
    desktop.click(left + 2 * 7, top + 14)
    assert notes.edit.caret == 26
    desktop.drag((left + 22 * 7, top), (left + 3 * 7, top + 14))
    assert notes.edit.selected == "wxyz1"
    desktop.type("-")
    assert notes.edit.text == "abcdefghijklmnopqrstuv-234"
    desktop.drag((left + 21 * 7, top), (left - 200, top - 200))
    assert notes.edit.selected == "abcdefghijklmnopqrstu"


def test_a_slider_is_clicked_or_dragged() -> None:
    desktop = desk("Conf")
    click(desktop, "Sound")
    slider = find(desktop, "Volume", "Slider")
    x, y = slider.column * 7 + 3, slider.centre[1]
    desktop.click(x + 7 * 7, y)
    assert desktop.world["conf"]["Volume"] == 70
    desktop.drag((x + 7 * 7, y), (x + 2 * 7, y + 40))
    assert desktop.world["conf"]["Volume"] == 20
    desktop.drag((x, y), (0, y))
    assert desktop.world["conf"]["Volume"] == 0
    desktop.drag((x, y), (400, y))
    assert desktop.world["conf"]["Volume"] == 100


def test_held_modifiers_apply_to_later_keys() -> None:
    desktop = desk("Note")
    desktop.type("milk")
    desktop.key_down("ctrl")
    desktop.key_down("ctrl")
    desktop.key(("a",))
    desktop.type("c")
    desktop.key_up("ctrl")
    desktop.key_up("ctrl")
    desktop.key(("end",))
    desktop.key(("ctrl", "v"))
    assert isinstance(desktop.front, Notes) and desktop.front.edit.text == "milkmilk"
    desktop.key_down("shift")
    desktop.type("b")
    desktop.key(("home",))
    desktop.key_up("shift")
    desktop.key_down("backspace")  # not one of the keys that stay down
    desktop.key(("x",))
    assert desktop.front.edit.text == "x"


def test_text_goes_to_the_focus_alone() -> None:
    desktop = desk()
    desktop.type("milk")
    desktop.key(("enter",))
    desktop.launch("Web")
    desktop.type("milk")
    assert isinstance(desktop.front, Web) and desktop.front.name.text == ""
    assert desktop.world == desk().world


def test_a_double_click_on_a_menu_or_a_title_is_a_click() -> None:
    desktop = desk("Conf")
    click(desktop, "User", "English")
    desktop.double_click(*find(desktop, "Greek").centre)
    assert desktop.world["conf"]["Lang"] == "Greek"
    desktop.double_click(*find(desktop, "x").centre)
    assert titles(desktop) == []
    desktop.double_click(*find(desktop, "Mail").centre)
    assert titles(desktop) == ["Mail"]


def test_elements_under_a_window_are_not_visible() -> None:
    desktop = two_windows()
    seen = {(element.label, element.kind) for element in desktop.visible_elements()}
    assert ("Submit", "Button") in seen and ("Net", "Tab") in seen and ("Web", "app") in seen
    # Web covers cells 8 and on; Wifi's middle is cell 8, the title's is cell 5.
    assert ("Wifi", "Check") not in seen and ("Conf", "title") in seen
    desktop.click(7, 7)
    assert find(desktop, "Wifi", "Check").centre == (8 * 7, 3 * 14 + 7)


def test_elements_under_a_menu_are_not_visible() -> None:
    desktop = desk("Conf")
    click(desktop, "Look")
    assert find(desktop, "Light", "Radio") and find(desktop, "Small", "DropDown")
    desktop.open_menu(6, 4, (("One", lambda: None),))
    labels = [element.label for element in desktop.visible_elements()]
    assert "One" in labels and "Light" not in labels and "Dark" in labels


def test_visible_elements_receive_clicks() -> None:
    """A click at the centre of a visible element of the front window reaches it."""
    for app in ("File", "Note", "Mail", "Conf", "Calc", "Web"):
        desktop = desk("Conf", app)
        front = desktop.front
        assert front is not None
        for element in desktop.visible_elements():
            if element.kind in ("app", "title", "close") or not front.contains(element.column, element.row):
                continue
            column, row = element.centre[0] // 7, element.centre[1] // 14
            widget = front.widget_at(column, row)
            assert widget is not None and widget.label == element.label
            assert type(widget).__name__ == element.kind


@pytest.mark.parametrize("size", [(224, 168), (448, 336), (1920, 1080), (300, 200)])
def test_drawing_again_or_on_a_fresh_desktop_gives_the_same_pixels(size: tuple[int, int]) -> None:
    def worked(*, look: bool) -> Desktop:
        desktop = desk("Conf", "Mail", "File", "Note")
        for x, y in ((35, 100), (60, 40), (120, 60), (60, 160), (40, 34), (90, 90), (10, 160), (60, 62)):
            desktop.click(x, y)
            desktop.type("tea")
            if look:
                desktop.draw(*size)
        return desktop

    looked, unseen = worked(look=True), worked(look=False)
    pixels = unseen.draw(*size).pixels
    assert (looked.draw(*size).pixels == pixels).all()
    assert (looked.draw(*size).pixels == pixels).all()
    assert looked.world == unseen.world


@pytest.mark.parametrize("size", [(224, 168), (300, 200)])
def test_a_moved_window_looks_as_if_it_had_opened_there(size: tuple[int, int]) -> None:
    """At 300x200 a cell is 9 or 10 pixels wide, depending on its column."""
    moved = desk("Conf")
    for column, row in ((0, 0), (0, 1), (2, 1), (6, 2), (8, 0)):
        window = moved.windows[0]
        start = (7 * (window.column + 5), 14 * window.row)
        moved.draw(*size)
        moved.drag(start, (7 * (column + 5), 14 * row))
        opened = desk()
        opened.launch("Conf", column, row)
        assert (moved.draw(*size).pixels == opened.draw(*size).pixels).all()


@pytest.mark.parametrize("app", ["File", "Note", "Mail", "Conf", "Calc", "Web"])
def test_an_untouched_window_has_equal_widgets(app: str) -> None:
    """Otherwise the cache would never be used."""
    desktop = desk(app)
    window = desktop.windows[0]
    assert window.widgets() == window.widgets()
    for tab in [element for element in desktop.visible_elements() if element.kind == "Tab"]:
        desktop.click(*tab.centre)
        assert window.widgets() == window.widgets()


def test_a_window_shows_whether_it_is_in_front() -> None:
    desktop = two_windows()
    colours = desktop.draw(224, 168).pixels
    assert colours[1, 100] == Colour.TITLE_IDLE and colours[2 * 14 + 1, 150] == Colour.TITLE
    desktop.click(7, 7)
    colours = desktop.draw(224, 168).pixels
    assert colours[1, 100] == Colour.TITLE and colours[10 * 14, 30 * 7] == Colour.PAPER


def test_every_change_is_visible_on_the_screen() -> None:
    """The cache never shows an outdated window."""
    desktop = desk("Conf", "Calc")
    frames = [desktop.draw(224, 168).pixels]
    for step in (
        lambda: desktop.click(*cell(desktop, "C3")),
        lambda: desktop.type("7"),
        lambda: desktop.key(("shift", "home")),
        lambda: desktop.key(("enter",)),
        lambda: desktop.drag((9 * 7, 20), (11 * 7, 20)),
        lambda: click(desktop, "Conf", kind="app"),
        lambda: click(desktop, "Wifi"),
        lambda: click(desktop, "Sound"),
        lambda: click(desktop, "Volume", kind="Slider"),
        lambda: click(desktop, "Look"),
        lambda: click(desktop, "Dark"),
        lambda: click(desktop, "Small"),
        lambda: click(desktop, "Large"),
        lambda: desktop.key(("alt", "f4")),
    ):
        step()
        frames.append(desktop.draw(224, 168).pixels)
    changed = [not np.array_equal(before, after) for before, after in pairwise(frames)]
    assert all(changed)


def test_the_focus_is_always_a_visible_field() -> None:
    desktop = desk("Web")
    click(desktop, "Name", kind="Field")
    desktop.type("Nora")
    click(desktop, "Submit")
    desktop.key(("tab",))
    desktop.type("ghost")
    assert desktop.front is not None and desktop.front.focus is None
    conf = desktop.launch("Conf")
    click(desktop, "User")
    click(desktop, "Name", kind="Field")
    click(desktop, "Net")
    desktop.key(("tab",))
    assert isinstance(conf, Conf) and conf.focus is None
    click(desktop, "User")
    assert [widget.text for widget in conf.widgets() if isinstance(widget, Field)] == ["Clara"]
