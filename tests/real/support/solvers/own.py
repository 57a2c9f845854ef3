"""How our own desktop tasks are solved."""

from player import Look
from solvers import in_terminal

# LibreOffice's button for saving looks different when there is nothing to save.
CHANGED = Look(160, 50, 200, 78)
SAVED = ["hotkey(key='ctrl s')", CHANGED]

# GIMP's menu "File", and in it "Overwrite"; then its title says so.
OVERWRITTEN = [
    "hotkey(key='alt f')",
    Look(110, 50, 390, 600),
    "type(content='w')",
    Look(700, 2, 1260, 18),
]

SOLUTIONS = {
    "calc-total": [
        "click(start_box='(360,311)')",
        "type(content='=SUM(B2:B6)\\n')",
        Look(340, 305, 400, 318),
        *SAVED,
    ],
    "calc-rename-sheet": [
        "left_double(start_box='(233,1044)')",
        Look(860, 500, 1130, 580),
        "hotkey(key='ctrl a')",
        "type(content='Harvest\\n')",
        Look(860, 500, 1130, 580),
        *SAVED,
    ],
    "writer-replace": [
        "hotkey(key='ctrl h')",
        Look(660, 340, 1320, 420),
        "type(content='Monday')",
        "click(start_box='(1016,456)')",
        "type(content='Tuesday')",
        "click(start_box='(1256,512)')",
        Look(660, 415, 1320, 435),
        "hotkey(key='esc')",
        Look(660, 340, 1320, 420),
        *SAVED,
    ],
    "writer-center-title": ["hotkey(key='ctrl home')", "hotkey(key='ctrl e')", *SAVED],
    "impress-pdf": [
        "click(start_box='(228,63)')",
        Look(450, 140, 1500, 200),
        "hotkey(key='ctrl a')",
        "type(content='/home/user/Desktop/bees.pdf\\n')",
        Look(450, 140, 1500, 200),
        "wait()",
    ],
    "gimp-scale": [
        "hotkey(key='alt i')",
        Look(330, 50, 540, 650),
        "type(content='s')",
        Look(810, 400, 1180, 440),
        "type(content='240\\t')",
        "hotkey(key='alt s')",
        Look(810, 400, 1180, 440),
        *OVERWRITTEN,
    ],
    "vlc-play": [
        "hotkey(key='ctrl o')",
        Look(670, 300, 1290, 320),
        "type(content='/home/user/Music/bells.wav\\n')",
        Look(670, 715, 705, 750),
    ],
    "chromium-bookmark": [
        "hotkey(key='ctrl d')",
        Look(1400, 90, 1800, 150),
        "click(start_box='(1708,208)')",
        Look(1620, 230, 1810, 290),
        "hotkey(key='down')",
        Look(1620, 230, 1810, 260),
        "hotkey(key='enter')",
        Look(1550, 280, 1820, 300),
        "click(start_box='(1770,270)')",
        Look(1400, 90, 1800, 150),
    ],
    "terminal-archive": in_terminal("tar -C Documents -czf Desktop/trip.tar.gz trip\n"),
    "files-rename": [
        "click(start_box='(884,395)')",
        Look(1210, 790, 1430, 808),  # F2 is lost until the selection is told there
        "hotkey(key='f2')",
        Look(710, 600, 1070, 680),
        "hotkey(key='ctrl a')",
        "type(content='final.txt\\n')",
        Look(710, 600, 1070, 680),
    ],
    "editor-append": [
        "hotkey(key='ctrl end')",
        "type(content='\\nmilk')",
        Look(940, 170, 1050, 190),
        "hotkey(key='ctrl s')",
        Look(940, 170, 1050, 190),
    ],
    "web-to-file": in_terminal("echo 555-0142 > Desktop/phone.txt\n"),
    "vlc-translate": ["error_env()"],
    "calc-average": [
        "click(start_box='(360,311)')",
        "type(content='=AVERAGE(B2:B6)\\n')",
        Look(340, 305, 400, 318),
        *SAVED,
    ],
    "writer-sign": ["hotkey(key='ctrl end')", "type(content='\\nSigned: Clara Holm')", CHANGED, *SAVED],
    "gimp-mirror": [
        "hotkey(key='alt i')",
        Look(330, 50, 540, 650),
        "type(content='t')",
        Look(560, 170, 850, 280),
        "type(content='h')",
        Look(560, 170, 850, 280),
        *OVERWRITTEN,
    ],
}
