"""The desktop's accessibility tree as XML in OSWorld's format, and the text of the focused terminal.

Reading the tree queries every application. An application may hang, and the libraries are large. The reader
is therefore a separate process with a timeout: `python3 -m arpo.envs.osworld.guest.accessibility MODE`, with
the mode `tree` or `terminal`.
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

TIMEOUT_SECONDS = 60.0
MAX_DEPTH = 50
MAX_CHILDREN = 1024  # per element
MAX_NODES = 20_000  # in the whole tree
_NAMESPACE_PREFIX = "https://accessibility.ubuntu.example.org/ns/"
_NAMESPACES = {
    "st": "state",
    "attr": "attributes",
    "cp": "component",
    "doc": "document",
    "docattr": "document/attributes",
    "txt": "text",
    "val": "value",
    "act": "action",
}
_INVALID_IN_NAME = re.compile(r"[^\w.-]")
_INVALID_IN_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|\ufffc|\ufffd")


def tree() -> str:
    """All applications' elements as XML, with their states, positions, texts and actions."""
    return _run_reader("tree")


def terminal_text() -> str | None:
    """The text of the focused terminal in the active window. None if no terminal is focused."""
    text = json.loads(_run_reader("terminal"))
    return text if text is None else str(text)


def _run_reader(mode: str) -> str:
    done = subprocess.run(
        ["/usr/bin/python3", "-P", "-m", "arpo.envs.osworld.guest.accessibility", mode],
        env=os.environ | {"PYTHONPATH": "/opt/arpo"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_SECONDS,
        check=True,
    )
    return done.stdout.decode("utf-8", "replace")


class _Reader:
    """Reads elements through libatspi, at most `MAX_NODES` in total."""

    def __init__(self) -> None:
        import gi

        gi.require_version("Atspi", "2.0")
        from gi.repository import Atspi, GLib

        self._atspi, self._error = Atspi, GLib.Error
        self._nodes_left = MAX_NODES
        Atspi.set_timeout(1000, 5000)

    def applications(self) -> Iterator[Any]:
        desktop = self._atspi.get_desktop(0)
        yield from self.children(desktop)

    def element(self, node: Any, depth: int) -> ElementTree.Element | None:
        """One element with its descendants. None if the element has disappeared meanwhile."""
        self._nodes_left -= 1
        try:
            role = node.get_role_name().strip() or "unknown"
            element = ElementTree.Element(_INVALID_IN_NAME.sub("-", role), self._attributes(node))
            element.text = self._text(node) or None
            if depth < MAX_DEPTH:
                for child in self._visible_cells(node) if role == "table" else self.children(node):
                    if self._nodes_left <= 0:
                        break
                    child_element = self.element(child, depth + 1)
                    if child_element is not None:
                        element.append(child_element)
            return element
        except self._error:
            return None

    def terminal(self, node: Any, depth: int) -> str | None:
        if node.get_role() == self._atspi.Role.TERMINAL:
            focused = node.get_state_set().contains(self._atspi.StateType.FOCUSED)
            return self._text(node).rstrip() if focused else None
        found = (self.terminal(child, depth + 1) for child in self.children(node) if depth < MAX_DEPTH)
        return next((text for text in found if text is not None), None)

    def is_active(self, node: Any) -> bool:
        return bool(node.get_state_set().contains(self._atspi.StateType.ACTIVE))

    def children(self, node: Any) -> Iterator[Any]:
        for index in range(min(node.get_child_count(), MAX_CHILDREN)):
            try:
                child = node.get_child_at_index(index)
            except self._error:
                continue
            if child is not None:
                yield child

    def _visible_cells(self, node: Any) -> Iterator[Any]:
        """The table cells on the screen: a spreadsheet has millions in total."""
        table, component = node.get_table_iface(), node.get_component_iface()
        if table is None or component is None or node.get_child_count() <= MAX_CHILDREN:
            yield from self.children(node)
            return
        screen = self._atspi.CoordType.SCREEN
        extents = component.get_extents(screen)
        first = component.get_accessible_at_point(extents.x + 2, extents.y + 2, screen)
        index = first.get_index_in_parent() if first is not None else 0
        top, left = table.get_row_at_index(index), table.get_column_at_index(index)
        for row in range(top, min(top + MAX_CHILDREN, table.get_n_rows())):
            shown = 0
            for column in range(left, min(left + MAX_CHILDREN, table.get_n_columns())):
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
            extents = component.get_extents(self._atspi.CoordType.SCREEN)
            found[_qualified("cp", "screencoord")] = str((extents.x, extents.y))
            found[_qualified("cp", "size")] = str((extents.width, extents.height))
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


def _qualified(namespace: str, name: str) -> str:
    return f"{{{_NAMESPACE_PREFIX}{_NAMESPACES[namespace]}}}{_INVALID_IN_NAME.sub('-', name)}"


def _clean(text: str) -> str:
    return _INVALID_IN_TEXT.sub("", text)


def _read_tree() -> str:
    for prefix, name in _NAMESPACES.items():
        ElementTree.register_namespace(prefix, _NAMESPACE_PREFIX + name)
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
