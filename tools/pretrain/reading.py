"""Reading and pointing: questions about a screen, with their answers.

A question names an element in the words of the solver's thoughts ("Click Wifi", "Open Mail", "Click B2"), so
that reading and pointing carry over to acting. Kinds of elements are asked for by their rarity (`screens`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arpo.actions import Action, Click, DoubleClick, Point, RightClick
from arpo.envs.desk.apps.calc import COLUMN_NAMES
from arpo.envs.desk.canvas import CELL_WIDTH
from arpo.envs.desk.desktop import Desktop, Element
from arpo.envs.desk.widgets import Field, Slider, Widget
from arpo.envs.desk.window import Window
from tools.pretrain.screens import choose_by_kind

READ_INSTRUCTION = "Read the screen"
FIND = "Select"  # the instruction to find words: "Select Save report"
NOTHING = "no"  # the answer for an empty field or cell
_UNLISTED_KINDS = ("app", "close")  # identical on every screen
_MAX_LISTED = 40
# Names of kinds in instructions.
KIND_WORDS = {
    "title": "name", "close": "Close", "app": "app", "choice": "menu", "Label": "text", "Button": "button",
    "Check": "check", "Radio": "radio", "Tab": "tab", "DropDown": "list", "Slider": "slider",
    "Field": "field", "Item": "Item", "Cell": "cell",
}  # fmt: skip
Rectangle = tuple[int, int, int, int]  # row, column, rows, columns, in cells
POINTED_KINDS = tuple(kind for kind in KIND_WORDS if kind not in ("title", "Label"))
_FOUND_KINDS = tuple(kind for kind in POINTED_KINDS if kind not in ("Slider", "app", "close"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An instruction with its answer: a text, or an action with the instruction as its thought.

    `kind` and `element`: the element asked for, if it is one.

    `targets`: the cells of all elements that the instruction names.
    """

    instruction: str
    answer: str = ""
    action: Action | None = None
    kind: str = ""
    element: Element | None = None
    targets: tuple[Rectangle, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A visible element with its window. `name` is its caption, `value` the shown text."""

    element: Element
    window: Window | None
    name: str
    value: str

    @property
    def kind(self) -> str:
        return self.element.kind


def visible_parts(desktop: Desktop) -> list[Part]:
    """All visible elements with a name, in reading order. Scroll bars have none."""
    elements = [element for element in desktop.visible_elements() if element.kind in KIND_WORDS]
    widgets = {
        (window.column + widget.column, window.row + 1 + widget.row, widget.label, i): widget
        for i, window in enumerate(desktop.windows)
        for widget in window.widgets()
    }
    parts = []
    for element in elements:
        number = _window_number(desktop, element)
        window = desktop.windows[number] if number is not None else None
        widget = widgets.get(
            (element.column, element.row, element.label, number if number is not None else -1)
        )
        name, value = _name(element, elements, window), _value(element, widget)
        parts.append(Part(element=element, window=window, name=name, value=value))
    return parts


def list_elements(desktop: Desktop) -> str:
    """The labels in the windows with their centres, in reading order: "Conf(63,21)Net(42,35)"."""
    return "".join(list_entry(element) for element in listed_elements(desktop))


def listed_elements(desktop: Desktop) -> list[Element]:
    elements = desktop.visible_elements()
    return [each for each in elements if each.label and each.kind not in _UNLISTED_KINDS][:_MAX_LISTED]


def list_entry(element: Element) -> str:
    return _entry(_words(element.label), element)


def read_screen(rng: random.Random, desktop: Desktop) -> Question | None:
    return Question(instruction=READ_INSTRUCTION, answer=list_elements(desktop))


def read_window(rng: random.Random, desktop: Desktop) -> Question | None:
    """All elements of one window: "Read Mail"."""
    parts = visible_parts(desktop)
    titles = [part for part in parts if part.kind == "title"]
    if not titles:
        return None
    title = rng.choice(titles)
    inside = [part for part in parts if part.window is title.window and part.value and part.kind != "close"]
    return Question(instruction=f"Read {title.name}", answer=_list(inside))


def read_kind(rng: random.Random, desktop: Desktop) -> Question | None:
    """All elements of one kind: "Read all button"."""
    parts = [part for part in visible_parts(desktop) if part.value]
    kind = choose_by_kind(rng, [(part.kind, part) for part in parts]).kind
    some = [part for part in parts if part.kind == kind]
    return Question(instruction=f"Read all {KIND_WORDS[kind]}", answer=_list(some), kind=kind)


def read_point(rng: random.Random, desktop: Desktop) -> Question | None:
    """The element at a point: "Read 105,77" is "Save"."""
    part = choose_by_kind(rng, [(part.kind, part) for part in visible_parts(desktop)])
    element = part.element
    x = rng.randint(element.column * CELL_WIDTH + 1, element.centre[0])
    y = element.centre[1] + rng.randint(-5, 5)
    answer = f"{part.value or NOTHING}{' on' if element.on else ''}"
    return Question(instruction=f"Read {x},{y}", answer=answer, kind=part.kind, element=element)


def read_state(rng: random.Random, desktop: Desktop) -> Question | None:
    """The state of a named element: "Read Wifi" is "on", "Read Body" is "milk", "Read B2" is "40"."""
    parts = [part for part in visible_parts(desktop) if part.kind in _STATES]
    named = [(part.kind, part) for part in parts if part.name]
    if not named:
        return None
    part = choose_by_kind(rng, named)
    answer = _STATES[part.kind](part) or NOTHING
    return Question(
        instruction=f"Read {_unique_name(part, parts)}", answer=answer, kind=part.kind, element=part.element
    )


def point(rng: random.Random, desktop: Desktop) -> Question | None:
    """One element to click, by its name, or by its kind and place: "Click Save", "Click button 2 of Mail"."""
    parts = [part for part in visible_parts(desktop) if part.kind in POINTED_KINDS]
    part = choose_by_kind(rng, [(part.kind, part) for part in parts])
    same = [each for each in parts if each.kind == part.kind and each.window is part.window]
    by_place = part.window is not None and part.kind != "Cell" and (not part.name or rng.random() < 0.1)
    if by_place and part.window is not None:
        title = _words(part.window.title)
        thought = f"Click {KIND_WORDS[part.kind]} {same.index(part) + 1} of {title}"
        action: Action = Click(point=Point(*part.element.centre))
    else:
        thought, action = _named_action(rng, part, parts)
    return Question(
        instruction=thought,
        action=action,
        kind=part.kind,
        element=part.element,
        targets=(rectangle(part.element),),
    )


def find(rng: random.Random, desktop: Desktop) -> Question | None:
    """One to four elements by their names, in any order: "Select Save Wifi" is "Save(70,35)Wifi(63,49)"."""
    parts = [part for part in visible_parts(desktop) if part.kind in _FOUND_KINDS and part.name]
    counts = Counter(part.name for part in parts)
    unique = [(part.kind, part) for part in parts if counts[part.name] == 1 and " " not in part.name]
    if not unique:
        return None
    drawn = [choose_by_kind(rng, unique) for _ in range(number_to_find(rng))]
    asked = list({part.name: part for part in drawn}.values())
    return Question(
        instruction=f"{FIND} {' '.join(part.name for part in asked)}",
        answer="".join(f"{part.name}({part.element.centre[0]},{part.element.centre[1]})" for part in asked),
        targets=tuple(rectangle(part.element) for part in asked),
    )


def number_to_find(rng: random.Random) -> int:
    """Mostly one: it teaches to match a name with the screen. Several teach to keep names apart."""
    return rng.choices((1, 2, 3, 4), (50, 20, 15, 15))[0]


def rectangle(element: Element) -> Rectangle:
    return element.row, element.column, element.rows, element.columns


def _named_action(rng: random.Random, part: Part, parts: Sequence[Part]) -> tuple[str, Action]:
    """A thought of the solver and its action."""
    element, centre = part.element, Point(*part.element.centre)
    name = _unique_name(part, parts)
    match part.kind:
        case "app":
            return f"Open {name}", Click(point=centre)
        case "close":
            title = _words(part.window.title) if part.window is not None else ""
            return f"Close {title}", Click(point=centre)
        case "Slider":
            value = rng.randrange(11)
            x = (element.column + value) * CELL_WIDTH + CELL_WIDTH // 2
            return f"Set {10 * value}", Click(point=Point(x, centre.y))
        case "Item":
            return rng.choice(
                (
                    (f"Click {name}", Click(point=centre)),
                    (f"right click {name}", RightClick(point=centre)),
                    (f"Open {name}", DoubleClick(point=centre)),
                )
            )
        case _:
            return f"Click {name}", Click(point=centre)


_STATES: dict[str, Callable[[Part], str]] = {
    **dict.fromkeys(("Check", "Radio", "Tab", "Item"), lambda part: "on" if part.element.on else "off"),
    **dict.fromkeys(("Field", "Slider", "DropDown", "Cell"), lambda part: part.value),
}


def _unique_name(part: Part, parts: Sequence[Part]) -> str:
    """The name, with its window if another element has the same name: "Name of Web Order"."""
    alone = sum(each.name == part.name for each in parts) == 1
    return part.name if alone or part.window is None else f"{part.name} of {_words(part.window.title)}"


def _name(element: Element, elements: Sequence[Element], window: Window | None) -> str:
    """The solver's word for an element: "B2" for a cell, the caption of a drop-down, the sender of a mail."""
    match element.kind:
        case "Cell" if window is not None:
            column, row = (element.column - window.column - 2) // 4, element.row - window.row - 2
            return f"{COLUMN_NAMES[column]}{row}"
        case "DropDown":
            captions = [
                each
                for each in elements
                if each.kind == "Label" and window is not None and window.contains(each.column, each.row)
            ]
            beside = [each for each in captions if each.row == element.row and each.column < element.column]
            above = [
                each for each in captions if each.row == element.row - 1 and each.column == element.column
            ]
            found = beside[-1:] or above
            return found[0].label if found else ""
        case "Item":
            return element.label.split()[0]
        case _:
            return _words(element.label)


def _value(element: Element, widget: Widget | None) -> str:
    match widget:
        case Field(text=text):
            return text
        case Slider(value=value):
            return str(value)
        case _:
            return _words(element.label)


def _window_number(desktop: Desktop, element: Element) -> int | None:
    """Index of the front-most window with the left end of the element."""
    if element.kind in ("app", "choice"):
        return None
    found = [i for i, each in enumerate(desktop.windows) if each.contains(element.column, element.row)]
    return found[-1] if found else None


def _list(parts: Sequence[Part]) -> str:
    return "".join(_entry(part.value, part.element) for part in parts[:_MAX_LISTED]) or NOTHING


def _entry(text: str, element: Element) -> str:
    x, y = element.centre
    return f"{text}{' on' if element.on else ''}({x},{y})"


def _words(text: str) -> str:
    return " ".join(text.split())
