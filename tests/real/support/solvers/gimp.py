"""OSWorld's tasks for GIMP: by its menus and keys."""

from player import WaitForChange

# Menu "Edit": the second entry with initial P.
PREFERENCES = [
    "hotkey(key='alt e')",
    WaitForChange(130, 60, 450, 720),
    "type(content='pp\\n')",
    WaitForChange(800, 350, 1380, 400),
]

SOLUTIONS = {
    # no dock
    "d52d6308": ["hotkey(key='tab')", WaitForChange(70, 50, 250, 600)],
    # 100 undo steps
    "7b7617bd": [
        *PREFERENCES,
        "hotkey(key='tab')",
        "hotkey(key='ctrl a')",
        "type(content='100\\t')",
        "hotkey(key='alt o')",
        WaitForChange(800, 750, 1380, 780),
    ],
    # a light theme
    "7767eef2": [
        *PREFERENCES,
        "click(start_box='(628,556)')",
        WaitForChange(800, 430, 1380, 700),
        "click(start_box='(835,525)')",
        "hotkey(key='alt o')",
        WaitForChange(800, 750, 1380, 780),
    ],
}
