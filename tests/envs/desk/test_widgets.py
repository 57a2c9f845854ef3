"""Text editing, and clicks on and painting of every widget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arpo.envs.desk.canvas import Canvas, Colour
from arpo.envs.desk.widgets import (
    Button,
    Cell,
    Check,
    DropDown,
    Field,
    Item,
    Label,
    Radio,
    ScrollBar,
    Slider,
    Tab,
    TextEdit,
    Widget,
    do_nothing,
)


def edited(text: str, *strokes: str) -> TextEdit:
    edit = TextEdit(text)
    for stroke in strokes:
        assert edit.key(tuple(stroke.split()))
    return edit


@pytest.mark.parametrize(
    ("strokes", "text", "caret"),
    [
        (["backspace"], "mil", 3),
        (["delete"], "milk", 4),
        (["home", "delete"], "ilk", 0),
        (["left", "left", "backspace"], "mlk", 1),
        (["home", "left"], "milk", 0),
        (["end", "right"], "milk", 4),
        (["shift left", "shift left", "backspace"], "mi", 2),
        (["shift home", "delete"], "", 0),
        (["home", "shift end", "backspace"], "", 0),
        (["home", "shift right", "x"], "xilk", 1),
        (["ctrl a", "z"], "z", 1),
        (["space", "shift a", "é"], "milk Aé", 7),
    ],
)
def test_keys_edit_text(strokes: list[str], text: str, caret: int) -> None:
    edit = edited("milk", *strokes)
    assert (edit.text, edit.caret, edit.anchor) == (text, caret, caret)


def test_a_selection_grows_from_where_it_began() -> None:
    edit = edited("bread", "left", "shift left", "shift left")
    assert (edit.anchor, edit.caret, edit.selected) == (4, 2, "ea")
    edit.key(("shift", "right"))
    assert edit.selected == "a"
    edit.key(("right",))
    assert edit.selected == ""


@pytest.mark.parametrize(
    "keys", [("enter",), ("esc",), ("ctrl", "z"), ("f2",), (), ("shift",), ("ctrl", "shift", "a")]
)
def test_other_keys_are_not_handled(keys: tuple[str, ...]) -> None:
    edit = TextEdit("milk")
    assert not edit.key(keys)
    assert (edit.text, edit.caret) == ("milk", 4)


def test_typing_replaces_the_selection_and_drops_unprintable_characters() -> None:
    edit = TextEdit("bread")
    edit.move_caret(1)
    edit.move_caret(3, extend=True)
    edit.insert("\x00o\x1b\r\u200e🙂")
    assert (edit.text, edit.caret, edit.selected) == ("bo🙂ad", 3, "")


@given(
    st.lists(
        st.sampled_from(
            ["left", "right", "home", "end", "backspace", "delete", "shift left", "shift home", "ctrl a"]
        )
        | st.text(max_size=3)
        | st.integers(-5, 20)
    )
)
def test_the_caret_never_leaves_the_text(events: list[str | int]) -> None:
    edit = TextEdit("milk")
    for event in events:
        if isinstance(event, int):
            edit.move_caret(event, extend=event % 2 == 0)
        elif not edit.key(tuple(event.split(" "))):
            edit.insert(event)
        assert 0 <= edit.caret <= len(edit.text) and 0 <= edit.anchor <= len(edit.text)
        assert edit.text[slice(*edit.selection)] == edit.selected


def field(
    text: str, caret: int, *, columns: int = 8, rows: int = 1, focused: bool = True
) -> tuple[Field, TextEdit]:
    edit = TextEdit(text)
    edit.move_caret(caret)
    widget = Field(
        column=2, row=0, columns=columns, rows=rows, label="Name", text=text, caret=caret,
        selection=(caret, caret), focused=focused, edit=edit,
    )  # fmt: skip
    return widget, edit


def test_a_click_puts_the_caret_between_characters() -> None:
    widget, edit = field("bread", 5)
    widget.click_at(2, 0)
    assert edit.caret == 2
    widget.click_at(7, 0)
    assert edit.caret == 5
    wrapped, edit = field("abcdefghij", 0, columns=4, rows=3)
    wrapped.click_at(1, 2)
    assert edit.caret == 9


def test_a_long_text_follows_its_caret() -> None:
    widget, edit = field("abcdefghijklmnopqrs", 19, columns=8)
    assert widget.first_visible == 16
    widget.click_at(1, 0)
    assert edit.caret == 17
    page, _ = field("abcdefghijklmnopqrs", 19, columns=4, rows=2)
    assert page.first_visible == 12
    assert field("abcdefghijklmnopqrs", 19, focused=False)[0].first_visible == 0
    assert field("abcdefg", 7)[0].first_visible == 0


def test_the_caret_is_drawn_where_it_is_and_only_with_the_focus() -> None:
    canvas = Canvas(224, 168)
    field("bread", 3)[0].draw(canvas, 14, 28)
    assert (canvas.pixels[30:40, 14 + 21 : 14 + 23] == Colour.ACCENT).all()
    canvas = Canvas(224, 168)
    field("bread", 3, focused=False)[0].draw(canvas, 14, 28)
    assert not (canvas.pixels == Colour.ACCENT).any()


def test_a_selection_is_highlighted_on_every_line_that_it_covers() -> None:
    edit = TextEdit("abcdefgh")
    widget = Field(
        column=0,
        row=0,
        columns=4,
        rows=2,
        text="abcdefgh",
        caret=6,
        selection=(2, 6),
        focused=True,
        edit=edit,
    )
    canvas = Canvas(224, 168)
    widget.draw(canvas, 0, 0)
    lit = canvas.pixels == Colour.FOLDER
    assert [bool(lit[1:13, 7 * i : 7 * i + 7].any()) for i in range(4)] == [False, False, True, True]
    assert [bool(lit[15:27, 7 * i : 7 * i + 7].any()) for i in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(("column", "value"), [(0, 0), (7, 70), (10, 100), (11, 100), (40, 100), (-3, 0)])
def test_a_slider_stops_at_tens(column: int, value: int) -> None:
    received: list[int] = []
    Slider(column=2, row=3, columns=12, value=50, change=received.append).click_at(column, 0)
    assert received == [value]


def test_a_scroll_bar_moves_towards_the_click() -> None:
    received: list[int] = []
    bar = ScrollBar(column=22, row=1, columns=2, rows=6, top=0, shown=6, total=9, scroll=received.append)
    for row in (0, 2, 3, 5):
        bar.click_at(0, row)
    assert received == [-1, -1, 1, 1]


def test_a_widget_contains_its_cells_and_no_others() -> None:
    button = Button(column=4, row=2, columns=3, rows=2)
    held = {(column, row) for column in range(12) for row in range(6) if button.contains(column, row)}
    assert held == {(4, 2), (5, 2), (6, 2), (4, 3), (5, 3), (6, 3)}


def test_widgets_are_equal_when_they_look_the_same() -> None:
    def other() -> None: ...

    plain = Button(column=1, row=2, columns=4, label="Save", click=do_nothing)
    assert plain == Button(column=1, row=2, columns=4, label="Save", click=other)
    assert plain != Button(column=1, row=2, columns=4, label="Send", click=do_nothing)
    assert plain != Label(column=1, row=2, columns=4, label="Save", click=do_nothing)
    assert field("milk", 2)[0] == field("milk", 2)[0]
    assert field("milk", 2)[0] != field("milk", 3)[0]
    on = Item(column=0, row=0, columns=9, label="a", on=True)
    assert on != Item(column=0, row=0, columns=9, label="a")


LONG = "wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww"
EVERY: list[Widget] = [
    Label(column=0, row=0, columns=10, label=LONG),
    Button(column=0, row=0, columns=10, label="Submit"),
    Check(column=0, row=0, columns=10, label="Hotspot", on=True),
    Radio(column=0, row=0, columns=10, label="Medium", on=True),
    Tab(column=0, row=0, columns=10, label="Sound", on=True),
    DropDown(column=0, row=0, columns=10, label="English"),
    Slider(column=0, row=0, columns=12, value=100, change=lambda _: None),
    field(LONG, 31, columns=10)[0],
    field(LONG, 10, columns=10, rows=2)[0],
    Item(column=0, row=0, columns=10, label=LONG, on=True, folder=True),
    Item(column=0, row=0, columns=10, label=LONG, flagged=True),
    Cell(column=0, row=0, columns=4, label=LONG, on=True),
    ScrollBar(column=0, row=0, columns=2, rows=6, top=3, shown=6, total=9, scroll=lambda _: None),
]


@pytest.mark.parametrize("size", [(224, 168), (1920, 1080)])
@pytest.mark.parametrize("widget", EVERY, ids=lambda widget: type(widget).__name__)
def test_a_widget_paints_inside_its_area(widget: Widget, size: tuple[int, int]) -> None:
    canvas = Canvas(*size)
    widget.draw(canvas, 70, 56)
    area = canvas.area(70, 56, widget.width, widget.height)
    assert np.any(canvas.pixels[area] != Colour.WALLPAPER)
    canvas.pixels[area] = Colour.WALLPAPER
    assert (canvas.pixels == Colour.WALLPAPER).all()
