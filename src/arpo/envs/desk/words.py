"""Vocabulary of Desk's tasks and screens. Each word is one token of the tiny base model.

Words are short, to fit a small screen. Lists are disjoint, so a word tells its kind.
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FILES = _words(
    "report budget photo letter recipe music travel school garden invoice poem diary sketch novel agenda "
    "survey ticket menu script table chart quote draft essay"
)
FOLDERS = _words("Work Home Old Family Trips Bills Media Ideas")
TEXTS = _words(
    "milk bread apples coffee honey cheese pepper salmon lemon onion butter olives rice pasta sugar tea "
    "beans grapes melon carrot"
)
PEOPLE = _words("Anna Boris Clara David Elena Frank Grace Hugo Irene Jonas Karin Luis Marta Nora Oscar Paula")
SUBJECTS = _words("lunch meeting party rent trip game concert dinner exam visit taxi keys")
ITEMS = _words("Lamp Chair Desk Shelf Sofa Clock")
CITIES = _words("Paris Rome Oslo Cairo Lima Tokyo")
LANGUAGES = _words("English French German Greek")
THEMES = _words("Light Dark Ocean")
SIZES = _words("Small Medium Large")
SWITCHES = _words("Wifi VPN Hotspot Flight")
MISSING_SWITCHES = _words("Radar Sonar Laser")

# Applications, buttons, tabs, and the verbs of instructions and thoughts.
INTERFACE = _words(
    "File Note Mail Conf Calc Web New Del Up Open Rename Delete Yes No OK Cancel Name Save All Copy Cut "
    "Paste Clear Edit Text untitled items Reply Flag Send To Sub Body In Sent Trash mail Net Look Sound "
    "User Volume Mute Theme Lang Sum Entry City Item Gift Submit Thanks Order folder as A B C D You use a "
    "computer Read the screen Click Set Turn on off theme text size volume language to user name file "
    "Move Make named Write in new note and save it Replace of with about saying Answer from Put cell sum "
    "column value for gift then Close menu Select all Type Drag Scroll Press right click no Done enter "
    "esc ctrl s x app button check radio tab list slider field"
)


def vocabulary() -> tuple[str, ...]:
    """Every word once, in a fixed order."""
    lists = (
        INTERFACE, FILES, FOLDERS, TEXTS, PEOPLE, SUBJECTS, ITEMS, CITIES, LANGUAGES, THEMES, SIZES, SWITCHES,
        MISSING_SWITCHES,
    )  # fmt: skip
    return tuple(dict.fromkeys(word for words in lists for word in words))
