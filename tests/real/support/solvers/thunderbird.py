"""OSWorld's tasks for Thunderbird: by mouse and keyboard."""

from player import WaitForChange

DIALOG = WaitForChange(850, 440, 1135, 600)
CONTENT = WaitForChange(400, 100, 1150, 620)


def new_folder(name):
    """Context menu of "Local Folders" > "New Folder…"."""
    return [
        "right_single(start_box='(200,168)')",
        WaitForChange(205, 175, 370, 430),
        "type(content='n')",
        DIALOG,
        f"type(content='{name}\\n')",
        DIALOG,
    ]


SOLUTIONS = {
    # two local folders
    "a10b69e1": [*new_folder("COMPANY"), *new_folder("UNIVERSITY")],
    # the dark theme
    "10a730d5": [
        "click(start_box='(85,1013)')",
        CONTENT,
        "click(start_box='(221,1006)')",
        CONTENT,
        "click(start_box='(220,272)')",
        CONTENT,
        "click(start_box='(986,564)')",
        CONTENT,
    ],
}
