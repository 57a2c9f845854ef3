"""OSWorld's tasks for VLC: in its preferences, by mouse and keyboard."""

from player import WaitForChange

PREFERENCES = ["hotkey(key='ctrl p')", WaitForChange(900, 180, 1100, 230)]
SAVED = ["hotkey(key='alt s')", WaitForChange(900, 850, 1390, 890)]

# Show "All" settings, search for "qt", open the page of the Qt interface, scroll to its lower half.
INTERFACE = [
    *PREFERENCES,
    "click(start_box='(688,863)')",
    WaitForChange(610, 300, 900, 320),
    "click(start_box='(758,219)')",
    "type(content='qt')",
    WaitForChange(610, 400, 900, 700),
    "click(start_box='(682,334)')",
    WaitForChange(920, 260, 1360, 300),
    "scroll(start_box='(1100,700)', direction='down')",
    WaitForChange(920, 300, 1360, 480),
]

SOLUTIONS = {
    # recordings go to the Desktop
    "8ba5ae7a": [
        *PREFERENCES,
        "click(start_box='(1038,240)')",
        WaitForChange(610, 280, 880, 320),
        "click(start_box='(1069,692)')",
        "type(content='/home/user/Desktop')",
        *SAVED,
    ],
    # 200% as the largest volume
    "9195653c": [*INTERFACE, "left_double(start_box='(1334,720)')", "type(content='200')", *SAVED],
    # a dark volume slider
    "d06f0d4d": [
        *INTERFACE,
        "click(start_box='(1335,540)')",
        "hotkey(key='ctrl a')",
        "type(content='20;20;20;30;30;30;40;40;40;50;50;50')",
        *SAVED,
    ],
    # minimal interface
    "a5bbbcd5": [*PREFERENCES, "click(start_box='(770,483)')", *SAVED],
    # several instances
    "f3977615": [*PREFERENCES, "click(start_box='(632,707)')", *SAVED],
    # no cone
    "215dfd39": [*INTERFACE, "click(start_box='(939,631)')", *SAVED],
}
