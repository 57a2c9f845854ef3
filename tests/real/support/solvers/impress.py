"""OSWorld's tasks for Impress: by its menus and dialogs."""

from player import WaitForChange

SOLUTIONS = {
    # the slide pane is back
    "ef9d12bd": [
        "hotkey(key='alt v')",
        WaitForChange(150, 50, 430, 700),
        "click(start_box='(206,308)')",
        WaitForChange(66, 130, 200, 160),
    ],
    # auto-save every three minutes
    "2cd43775": [
        "hotkey(key='alt f12')",
        WaitForChange(600, 235, 1400, 260),
        "click(start_box='(520,576)')",
        "click(start_box='(572,599)')",
        WaitForChange(810, 380, 1300, 410),
        "click(start_box='(827,396)')",
        "left_double(start_box='(1115,396)')",
        "type(content='3')",
        "click(start_box='(1432,855)')",
        WaitForChange(600, 235, 1400, 260),
    ],
}
