"""Solutions of our own desktop tasks."""

from player import WaitForChange
from solvers import in_terminal
from solvers.thunderbird import new_folder

# LibreOffice's save button changes its icon when there is something to save.
CHANGED = WaitForChange(160, 50, 200, 78)
SAVED = ["hotkey(key='ctrl s')", CHANGED]

# GIMP's menu "File" > "Overwrite"; the window title shows the change.
OVERWRITTEN = [
    "hotkey(key='alt f')",
    WaitForChange(110, 50, 390, 600),
    "type(content='w')",
    WaitForChange(700, 2, 1260, 18),
]

SOLUTIONS = {
    "calc-total": [
        "click(start_box='(360,311)')",
        "type(content='=SUM(B2:B6)\\n')",
        WaitForChange(340, 305, 400, 318),
        *SAVED,
    ],
    "calc-rename-sheet": [
        "left_double(start_box='(233,1044)')",
        WaitForChange(860, 500, 1130, 580),
        "hotkey(key='ctrl a')",
        "type(content='Harvest\\n')",
        WaitForChange(860, 500, 1130, 580),
        *SAVED,
    ],
    "writer-replace": [
        "hotkey(key='ctrl h')",
        WaitForChange(660, 340, 1320, 420),
        "type(content='Monday')",
        "click(start_box='(1016,456)')",
        "type(content='Tuesday')",
        "click(start_box='(1256,512)')",
        WaitForChange(660, 415, 1320, 435),
        "hotkey(key='esc')",
        WaitForChange(660, 340, 1320, 420),
        *SAVED,
    ],
    "writer-center-title": ["hotkey(key='ctrl home')", "hotkey(key='ctrl e')", *SAVED],
    "impress-pdf": [
        "click(start_box='(228,63)')",
        WaitForChange(450, 140, 1500, 200),
        "hotkey(key='ctrl a')",
        "type(content='/home/user/Desktop/bees.pdf\\n')",
        WaitForChange(450, 140, 1500, 200),
        "wait()",
    ],
    "gimp-scale": [
        "hotkey(key='alt i')",
        WaitForChange(330, 50, 540, 650),
        "type(content='s')",
        WaitForChange(810, 400, 1180, 440),
        "type(content='240\\t')",
        "hotkey(key='alt s')",
        WaitForChange(810, 400, 1180, 440),
        *OVERWRITTEN,
    ],
    "vlc-play": [
        "hotkey(key='ctrl o')",
        WaitForChange(670, 300, 1290, 320),
        "type(content='/home/user/Music/bells.wav\\n')",
        WaitForChange(670, 715, 705, 750),
    ],
    "chromium-bookmark": [
        "hotkey(key='ctrl d')",
        WaitForChange(1400, 90, 1800, 150),
        "click(start_box='(1708,208)')",
        WaitForChange(1620, 230, 1810, 290),
        "hotkey(key='down')",
        WaitForChange(1620, 230, 1810, 260),
        "hotkey(key='enter')",
        WaitForChange(1550, 280, 1820, 300),
        "click(start_box='(1770,270)')",
        WaitForChange(1400, 90, 1800, 150),
    ],
    "terminal-archive": in_terminal("tar -C Documents -czf Desktop/trip.tar.gz trip\n"),
    "files-rename": [
        "click(start_box='(884,395)')",
        WaitForChange(1210, 790, 1430, 808),  # F2 is ignored until the status bar shows the selection
        "hotkey(key='f2')",
        WaitForChange(710, 600, 1070, 680),
        "hotkey(key='ctrl a')",
        "type(content='final.txt\\n')",
        WaitForChange(710, 600, 1070, 680),
    ],
    "editor-append": [
        "hotkey(key='ctrl end')",
        "type(content='\\nmilk')",
        WaitForChange(940, 170, 1050, 190),
        "hotkey(key='ctrl s')",
        WaitForChange(940, 170, 1050, 190),
    ],
    "web-to-file": in_terminal("echo 555-0142 > Desktop/phone.txt\n"),
    "vlc-translate": ["error_env()"],
    "mail-folder": new_folder("Receipts"),
    "calc-average": [
        "click(start_box='(360,311)')",
        "type(content='=AVERAGE(B2:B6)\\n')",
        WaitForChange(340, 305, 400, 318),
        *SAVED,
    ],
    "writer-sign": ["hotkey(key='ctrl end')", "type(content='\\nSigned: Clara Holm')", CHANGED, *SAVED],
    "gimp-mirror": [
        "hotkey(key='alt i')",
        WaitForChange(330, 50, 540, 650),
        "type(content='t')",
        WaitForChange(560, 170, 850, 280),
        "type(content='h')",
        WaitForChange(560, 170, 850, 280),
        *OVERWRITTEN,
    ],
}
