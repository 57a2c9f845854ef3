"""How each task is solved, as a model would write it: one entry is one answer, or a Look at what comes up.

By the task's id, or by its beginning. Places are pixels of a screen of 1920x1080.
"""

from player import Look

TERMINAL_TITLE = Look(800, 300, 1150, 340)


def in_terminal(*lines):
    """Opens a terminal by its shortcut and types into it; one answer for each line."""
    return ["hotkey(key='ctrl alt t')", TERMINAL_TITLE, *(f"type(content={line!r})" for line in lines)]
