"""Solutions by task id or its beginning. An entry is one answer of a model, or a WaitForChange.

Coordinates are pixels of a 1920x1080 screen.
"""

from player import WaitForChange

TERMINAL_TITLE = WaitForChange(800, 300, 1150, 340)


def in_terminal(*lines):
    """Opens a terminal by its shortcut and types the lines, one answer each."""
    return ["hotkey(key='ctrl alt t')", TERMINAL_TITLE, *(f"type(content={line!r})" for line in lines)]
