"""The accessibility tree of the desktop as XML, in OSWorld's words, and the text of the terminal in front.

Reading it talks to every application, which may hang, and loads much code. So it runs as a process of its
own, with a time limit: `python3 -m arpo.envs.osworld.guest.accessibility tree`, or `terminal`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

SECONDS = 60.0
DEPTH = 50
CHILDREN = 1024
NODES = 20_000
_SPACE = "https://accessibility.ubuntu.example.org/ns/"
_SPACES = {
    "st": "state",
    "attr": "attributes",
    "cp": "component",
    "doc": "document",
    "docattr": "document/attributes",
    "txt": "text",
    "val": "value",
    "act": "action",
}
_NO_NAME = re.compile(r"[^\w.-]")
_NO_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufffc|\ufffd")


def tree() -> str:
    """Every application's elements, with their states, places, texts and actions."""
    return _ask("tree")


def terminal_text() -> str | None:
    """What the focused terminal of the active window shows; None where there is none."""
    text = json.loads(_ask("terminal"))
    return text if text is None else str(text)


def _ask(question: str) -> str:
    done = subprocess.run(
        ["/usr/bin/python3", "-P", "-m", "arpo.envs.osworld.guest.accessibility", question],
        env=os.environ | {"PYTHONPATH": "/opt/arpo"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=SECONDS,
        check=True,
    )
    return done.stdout.decode("utf-8", "replace")


class _Reader:
    """Reads elements through libatspi; the room for nodes is shared by the whole tree."""

    def __init__(self) -> None:
        import gi

        gi.require_version("Atspi", "2.0")
        from gi.repository import Atspi, GLib

        self._atspi, self._gone = Atspi, GLib.Error
        self._room = NODES
        Atspi.set_timeout(1000, 5000)

    def applications(self) -> Iterator[Any]:
        desktop = self._atspi.get_desktop(0)
        yield from self.children(desktop)

    def element(self, node: Any, depth: int) -> ElementTree.Element | None:
        """One element with all below it; None for one that has gone meanwhile."""
        self._room -= 1
        try:
            role = node.get_role_name().strip() or "unknown"
            element = ElementTree.Element(_NO_NAME.sub("-", role), self._attributes(node))
            element.text = self._text(node) or None
            if depth < DEPTH:
                for child in self._shown_cells(node) if role == "table" else self.children(node):
                    if self._room <= 0:
                        break
                    below = self.element(child, depth + 1)
                    if below is not None:
                        element.append(below)
            return element
        except self._gone:
            return None

    def terminal(self, node: Any, depth: int) -> str | None:
        if node.get_role() == self._atspi.Role.TERMINAL:
            focused = node.get_state_set().contains(self._atspi.StateType.FOCUSED)
            return self._text(node).rstrip() if focused else None
        found = (self.terminal(child, depth + 1) for child in self.children(node) if depth < DEPTH)
        return next((text for text in found if text is not None), None)

    def is_active(self, node: Any) -> bool:
        return bool(node.get_state_set().contains(self._atspi.StateType.ACTIVE))

    def children(self, node: Any) -> Iterator[Any]:
        for index in range(min(node.get_child_count(), CHILDREN)):
            try:
                child = node.get_child_at_index(index)
            except self._gone:
                continue
            if child is not None:
                yield child

    def _shown_cells(self, node: Any) -> Iterator[Any]:
        """The cells that are on the screen: a sheet has millions."""
        table, component = node.get_table_iface(), node.get_component_iface()
        if table is None or component is None or node.get_child_count() <= CHILDREN:
            yield from self.children(node)
            return
        screen = self._atspi.CoordType.SCREEN
        place = component.get_extents(screen)
        first = component.get_accessible_at_point(place.x + 2, place.y + 2, screen)
        index = first.get_index_in_parent() if first is not None else 0
        top, left = table.get_row_at_index(index), table.get_column_at_index(index)
        for row in range(top, min(top + CHILDREN, table.get_n_rows())):
            shown = 0
            for column in range(left, min(left + CHILDREN, table.get_n_columns())):
                cell = table.get_accessible_at(row, column)
                if cell is None or not cell.get_state_set().contains(self._atspi.StateType.SHOWING):
                    break
                shown += 1
                yield cell
            if not shown:
                return

    def _attributes(self, node: Any) -> dict[str, str]:
        states = {state.value_nick.replace("-", "_") for state in node.get_state_set().get_states()}
        found = {"name": _clean(node.get_name() or "")}
        found |= {_qualified("st", state): "true" for state in sorted(states)}
        found |= {
            _qualified("attr", key): _clean(value)
            for key, value in (node.get_attributes() or {}).items()
            if key
        }
        if {"visible", "showing"} <= states and (component := node.get_component_iface()):
            place = component.get_extents(self._atspi.CoordType.SCREEN)
            found[_qualified("cp", "screencoord")] = str((place.x, place.y))
            found[_qualified("cp", "size")] = str((place.width, place.height))
        if node.get_image_iface():
            found["image"] = "true"
        if node.get_selection_iface():
            found["selection"] = "true"
        return found | self._value(node) | self._actions(node)

    def _value(self, node: Any) -> dict[str, str]:
        value = node.get_value_iface()
        if value is None:
            return {}
        return {
            _qualified("val", "value"): str(value.get_current_value()),
            _qualified("val", "min"): str(value.get_minimum_value()),
            _qualified("val", "max"): str(value.get_maximum_value()),
            _qualified("val", "step"): str(value.get_minimum_increment()),
        }

    def _actions(self, node: Any) -> dict[str, str]:
        action, found = node.get_action_iface(), {}
        for index in range(action.get_n_actions() if action else 0):
            name = action.get_action_name(index)
            found[_qualified("act", f"{name}_desc")] = _clean(action.get_action_description(index) or "")
            found[_qualified("act", f"{name}_kb")] = _clean(action.get_key_binding(index) or "")
        return found

    def _text(self, node: Any) -> str:
        text = node.get_text_iface()
        return _clean(text.get_text(0, text.get_character_count())) if text else ""


def _qualified(space: str, name: str) -> str:
    return f"{{{_SPACE}{_SPACES[space]}}}{_NO_NAME.sub('-', name)}"


def _clean(text: str) -> str:
    return _NO_TEXT.sub("", text)


def _read_tree() -> str:
    for prefix, name in _SPACES.items():
        ElementTree.register_namespace(prefix, _SPACE + name)
    reader, root = _Reader(), ElementTree.Element("desktop-frame")
    for application in reader.applications():
        element = reader.element(application, 1)
        if element is not None:
            root.append(element)
    return ElementTree.tostring(root, encoding="unicode")


def _read_terminal() -> str | None:
    reader = _Reader()
    for application in reader.applications():
        if application.get_name() == "gnome-terminal-server":
            for window in filter(reader.is_active, reader.children(application)):
                return reader.terminal(window, 2)
    return None


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    print(_read_tree() if sys.argv[1] == "tree" else json.dumps(_read_terminal()), end="")
