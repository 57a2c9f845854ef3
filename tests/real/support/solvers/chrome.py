"""OSWorld's tasks for Chrome: in its settings pages, by mouse and keyboard."""

from player import WaitForChange


def page(address, shows):
    return ["hotkey(key='ctrl l')", f"type(content='{address}\\n')", shows]


def focus(label):
    """Focus the control that follows a label. F3 opens the browser's search: settings pages use ctrl f."""
    return [
        "hotkey(key='f3')",
        f"type(content='{label}\\n')",
        WaitForChange(0, 100, 1920, 1080),
        "hotkey(key='esc')",
        "hotkey(key='tab')",
    ]


SOLUTIONS = {
    # Bing as search engine
    "bb5e4c0d": [
        *page("chrome://settings/searchEngines", WaitForChange(650, 650, 900, 710)),
        "click(start_box='(1286,681)')",
        WaitForChange(1180, 690, 1270, 770),
        "click(start_box='(1237,713)')",
        WaitForChange(650, 650, 900, 710),
    ],
    # a folder on the bookmarks bar; Chrome writes its bookmarks 2.5 s later and loses them if killed before
    "2ad9387a": [
        "hotkey(key='ctrl shift o')",
        WaitForChange(80, 140, 320, 240),
        "click(start_box='(1888,113)')",
        WaitForChange(1720, 160, 1900, 370),
        "click(start_box='(1810,213)')",
        WaitForChange(700, 350, 950, 700),
        "type(content='Favorites\\n')",
        WaitForChange(700, 350, 950, 700),
        *["wait()"] * 3,
    ],
    # another name of the profile
    "2ae9ba84": [
        *page("chrome://settings/manageProfile", WaitForChange(650, 220, 1200, 320)),
        "hotkey(key='tab')",
        "hotkey(key='ctrl a')",
        "type(content='Thomas')",
        "hotkey(key='tab')",
        "wait()",
    ],
    # the largest font
    "af630914": [
        *page("chrome://settings/fonts", WaitForChange(650, 220, 1300, 320)),
        "hotkey(key='tab')",
        "hotkey(key='end')",
        WaitForChange(700, 430, 900, 500),
    ],
    # do not track
    "030eeff7": [
        *page("chrome://settings/cookies", WaitForChange(650, 570, 1280, 640)),
        *focus("Do Not Track"),
        "hotkey(key='space')",
        WaitForChange(700, 450, 1200, 700),
        "hotkey(key='enter')",
        WaitForChange(700, 450, 1200, 700),
    ],
}
