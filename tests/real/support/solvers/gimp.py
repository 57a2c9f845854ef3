"""OSWorld's tasks for GIMP: by its menus and keys."""

from player import Look

# The menu "Edit": its second entry that begins with P.
PREFERENCES = [
    "hotkey(key='alt e')",
    Look(130, 60, 450, 720),
    "type(content='pp\\n')",
    Look(800, 350, 1380, 400),
]

SOLUTIONS = {
    # no dock
    "d52d6308": ["hotkey(key='tab')", Look(70, 50, 250, 600)],
    # 100 undo steps
    "7b7617bd": [
        *PREFERENCES,
        "hotkey(key='tab')",
        "hotkey(key='ctrl a')",
        "type(content='100\\t')",
        "hotkey(key='alt o')",
        Look(800, 750, 1380, 780),
    ],
    # a light theme
    "7767eef2": [
        *PREFERENCES,
        "click(start_box='(628,556)')",
        Look(800, 430, 1380, 700),
        "click(start_box='(835,525)')",
        "hotkey(key='alt o')",
        Look(800, 750, 1380, 780),
    ],
}
