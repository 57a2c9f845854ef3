"""The interface of goals, and helpers for their solvers.

A goal defines an instruction, the resulting change of the world, and the next step of a competent user from
any state of the desktop. Solvers target visible elements and act only through actions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar, Protocol

from arpo.actions import Action, Click, DoubleClick, Drag, Fail, Hotkey, Point, RightClick, Scroll, Type
from arpo.actions import Direction as ScrollDirection
from arpo.envs.desk.desktop import Desktop, Element
from arpo.envs.desk.widgets import Field, ScrollBar, TextEdit
from arpo.envs.desk.window import Dialog
from arpo.envs.desk.world import World


@dataclass(frozen=True, slots=True)
class Step:
    """One answer of the solver. Points are in layout units."""

    thought: str
    action: Action


class Goal(Protocol):
    """Implemented by frozen dataclasses with plain fields, which task files store as JSON."""

    app: ClassVar[str]

    @classmethod
    def sample(cls, rng: random.Random, world: World) -> Goal:
        """A random goal for `world`. IndexError if there is none."""
        ...

    @property
    def instruction(self) -> str: ...

    def apply(self, world: World) -> None:
        """Make the requested change in `world`."""
        ...

    def next_step(self, desktop: Desktop) -> Step | None:
        """The next step, or None if the goal is reached."""
        ...


def find_element(desktop: Desktop, label: str, kind: str, nth: int = 0) -> Element | None:
    """The nth matching element of the front window, the open menu or the task bar. "" matches any label."""
    visible = desktop.visible_elements(kind)
    found = [element for element in visible if element.label == label or not label]
    if kind not in ("app", "choice") and (front := desktop.front) is not None:
        found = [element for element in found if front.contains(element.column, element.row)]
    return found[nth] if nth < len(found) else None


def _point(element: Element) -> Point:
    return Point(*element.centre)


def click(element: Element, thought: str) -> Step:
    return Step(thought, Click(point=_point(element)))


def click_on(desktop: Desktop, label: str, kind: str = "Button") -> Step:
    """Click a visible element."""
    element = find_element(desktop, label, kind)
    assert element is not None, f"no visible {kind} {label!r}"
    return click(element, f"Click {label}")


def double_click(element: Element, thought: str) -> Step:
    return Step(thought, DoubleClick(point=_point(element)))


def right_click(element: Element, thought: str) -> Step:
    return Step(thought, RightClick(point=_point(element)))


def drag(element: Element, target: Element, thought: str) -> Step:
    return Step(thought, Drag(start=_point(element), end=_point(target)))


def give_up(name: str) -> Step:
    """The last step if the goal's target does not exist."""
    return Step(f"no {name}", Fail())


def open_app(desktop: Desktop, app: str) -> Step | None:
    """Cancel an open dialog, then bring the application to the front. None if it is there."""
    front = desktop.front
    if isinstance(front, Dialog):
        return click_on(desktop, "Cancel" if front.asks_name else "No")
    if type(front) is desktop.apps[app]:
        return None
    element = find_element(desktop, app, "app")
    assert element is not None
    return click(element, f"Open {app}")


def close_menu(desktop: Desktop) -> Step | None:
    """Close the open menu. None if there is none."""
    return Step("Close menu", Hotkey(keys=("esc",))) if desktop.popup is not None else None


def choose(desktop: Desktop, value: str) -> Step | None:
    """Click a value in the open menu, or close a menu without it. None if no menu is open."""
    if element := find_element(desktop, value, "choice"):
        return click(element, f"Click {value}")
    return close_menu(desktop)


def field_edit(desktop: Desktop, label: str) -> TextEdit:
    front = desktop.front
    assert front is not None
    return next(w.edit for w in front.widgets() if isinstance(w, Field) and w.label == label)


def fill_field(desktop: Desktop, label: str, text: str) -> Step | None:
    """Set a text field of the front window to `text`. None if it is set."""
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
    """A row of the front window's list, or the step to scroll towards it."""
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
    """Enter a name into the dialog with this question. None if it is not in front."""
    front = desktop.front
    if not (isinstance(front, Dialog) and front.question == question):
        return None
    return fill_field(desktop, "Name", name) or click_on(desktop, "OK")


def answer_yes(desktop: Desktop, question: str) -> Step | None:
    """Confirm the dialog with this question. None if it is not in front."""
    front = desktop.front
    if isinstance(front, Dialog) and front.question == question:
        return click_on(desktop, "Yes")
    return None
