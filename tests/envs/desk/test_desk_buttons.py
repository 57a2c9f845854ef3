"""The mouse on Desk: buttons pressed and released apart, the middle button, three clicks, scroll amounts."""

from arpo.actions import Direction, MiddleClick, MouseDown, MouseUp, Point, Scroll, TripleClick
from arpo.envs.desk.desktop import Desktop
from arpo.envs.desk.env import perform
from desks import desk


def centre(desktop: Desktop, label: str, kind: str = "") -> Point:
    element = next(one for one in desktop.visible_elements(kind) if one.label == label)
    return Point(*element.centre)


def test_press_and_release_apart_is_a_drag() -> None:
    dragged, held = desk("File"), desk("File")
    start, end = centre(held, "budget"), centre(held, "Work")
    dragged.drag((int(start.x), int(start.y)), (int(end.x), int(end.y)))
    perform(held, MouseDown(point=start))
    perform(held, MouseUp(point=end))
    assert held.world == dragged.world != desk("File").world


def test_press_and_release_in_one_place_is_a_click() -> None:
    desktop = desk("Conf")
    place = centre(desktop, "Wifi")
    perform(desktop, MouseDown(point=place))
    perform(desktop, MouseUp(point=place))
    assert desktop.world["conf"]["Wifi"] is True
    perform(desktop, MouseUp(point=place))  # nothing was pressed
    assert desktop.world["conf"]["Wifi"] is True


def test_three_clicks_select_a_field_and_the_middle_button_inserts_the_selection() -> None:
    desktop = desk("Web")
    field = desktop.visible_elements("Field")[0]
    desktop.click(*field.centre)
    desktop.type("Clara")
    perform(desktop, TripleClick(point=Point(*field.centre)))
    assert desktop.front is not None and desktop.front.focus is not None
    assert desktop.front.focus.selected == "Clara"
    perform(desktop, MiddleClick(point=Point(*field.centre)))
    assert desktop.front.focus.text == "ClaraClara"


def test_an_amount_scrolls_further() -> None:
    lines: list[int] = []

    class Counting(Desktop):
        def scroll(self, x: int, y: int, lines_: int) -> None:
            lines.append(lines_)

    desktop = Counting({}, {})
    for amount in (None, 1, 5, 10):
        perform(desktop, Scroll(point=Point(9, 9), direction=Direction.UP, amount=amount))
    assert lines == [-2, -1, -2, -4]
