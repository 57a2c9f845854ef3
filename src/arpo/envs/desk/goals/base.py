"""What a goal is, and the hands that its solver works with.

A goal says what to ask for, what the world looks like when it is reached, and what a competent user would do
next from any state of the desktop. Solvers look only at what can be seen and act only through actions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar, Protocol

from arpo.actions import Action, Click, DoubleClick, Drag, Hotkey, Point, RightClick, Scroll, Type
from arpo.actions import Direction as ScrollDirection
from arpo.envs.desk.desktop import Desktop, Element
from arpo.envs.desk.widgets import Field, ScrollBar, TextEdit
from arpo.envs.desk.window import Dialog
from arpo.envs.desk.world import World


@dataclass(frozen=True, slots=True)
class Step:
    """One answer: why, and what. Places are in units of the layout."""

    thought: str
    action: Action


class Goal(Protocol):
    """Implemented by frozen dataclasses whose fields are plain values, so that a task file can hold them."""

    app: ClassVar[str]

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> Goal: ...

    @property
    def instruction(self) -> str: ...

    def apply(self, world: World) -> None:
        """Change a world into what it must be in the end."""
        ...

    def next_step(self, desktop: Desktop) -> Step | None:
        """The next step towards the goal, or None when it is reached."""
        ...


def find_element(desktop: Desktop, label: str, kind: str, nth: int = 0) -> Element | None:
    """The thing of that kind with those words, in the front window, the open menu or the task bar."""
    found = [
        element
        for element in desktop.visible_elements()
        if element.kind == kind and (element.label == label or not label)
    ]
    if kind not in ("app", "choice") and (front := desktop.front) is not None:
        found = [element for element in found if front.contains(element.column, element.row)]
    return found[nth] if nth < len(found) else None


def _point(element: Element) -> Point:
    return Point(*element.centre)


def click(element: Element, thought: str) -> Step:
    return Step(thought, Click(point=_point(element)))


def click_on(desktop: Desktop, label: str, kind: str = "Button") -> Step:
    """Click something that must be in sight."""
    element = find_element(desktop, label, kind)
    assert element is not None, f"no {kind} {label!r} in sight"
    return click(element, f"Click {label}")


def double_click(element: Element, thought: str) -> Step:
    return Step(thought, DoubleClick(point=_point(element)))


def right_click(element: Element, thought: str) -> Step:
    return Step(thought, RightClick(point=_point(element)))


def drag(element: Element, target: Element, thought: str) -> Step:
    return Step(thought, Drag(start=_point(element), end=_point(target)))


def open_app(desktop: Desktop, app: str) -> Step | None:
    """Bring the application to the front; whatever dialog or letter is in the way is dismissed first."""
    front = desktop.front
    if isinstance(front, Dialog):
        return click_on(desktop, "Cancel" if front.asks_name else "No")
    if type(front) is desktop.apps[app]:
        return None
    element = find_element(desktop, app, "app")
    assert element is not None
    return click(element, f"Open {app}")


def close_menu(desktop: Desktop) -> Step | None:
    """Close a menu that is in the way."""
    return Step("Close menu", Hotkey(keys=("esc",))) if desktop.popup is not None else None


def choose(desktop: Desktop, value: str) -> Step | None:
    """Pick a value from the open menu; if that is another menu, close it. None when no menu is open."""
    if element := find_element(desktop, value, "choice"):
        return click(element, f"Click {value}")
    return close_menu(desktop)


def field_edit(desktop: Desktop, label: str) -> TextEdit:
    front = desktop.front
    assert front is not None
    return next(w.edit for w in front.widgets() if isinstance(w, Field) and w.label == label)


def fill_field(desktop: Desktop, label: str, text: str) -> Step | None:
    """Make a text field of the front window hold just this text."""
    front = desktop.front
    edit = field_edit(desktop, label)
    assert front is not None
    if edit.text == text:
        return None
    if front.focus is not edit:
        element = find_element(desktop, label, "Field")
        assert element is not None
        return click(element, f"Click {label}")
    if edit.selected != edit.text:
        return Step("Select all", Hotkey(keys=("ctrl", "a")))
    return Step(f"Type {text}", Type(text=text))


def find_item(desktop: Desktop, label: str) -> Element | Step:
    """A row of the front window's list, or the scrolling that brings it into sight."""
    element = find_element(desktop, label, "Item")
    if element is not None:
        return element
    front = desktop.front
    assert front is not None
    bar = next(widget for widget in front.widgets() if isinstance(widget, ScrollBar))
    at_end = bar.top >= bar.total - bar.shown
    first = find_element(desktop, "", "Item")
    assert first is not None
    direction = ScrollDirection.UP if at_end else ScrollDirection.DOWN
    return Step(f"Scroll to {label}", Scroll(point=_point(first), direction=direction))


def answer_name(desktop: Desktop, question: str, name: str) -> Step | None:
    """Give a name to the one question that is meant."""
    front = desktop.front
    if not (isinstance(front, Dialog) and front.question == question):
        return None
    return fill_field(desktop, "Name", name) or click_on(desktop, "OK")


def answer_yes(desktop: Desktop, question: str) -> Step | None:
    """Confirm the one question that is meant."""
    front = desktop.front
    if isinstance(front, Dialog) and front.question == question:
        return click_on(desktop, "Yes")
    return None
