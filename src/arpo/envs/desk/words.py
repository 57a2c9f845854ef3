"""The words that Desk's tasks and screens are made of. One token each for the tiny base model.

Short, so that they fit the cells of a small screen; disjoint lists, so that a task can say which kind it means.
"""

from __future__ import annotations

FILES = tuple(
    "report budget photo letter recipe music travel school garden invoice poem diary sketch novel agenda "
    "survey ticket menu script table chart quote draft essay".split()
)
FOLDERS = tuple("Work Home Old Family Trips Bills Media Ideas".split())
TEXTS = tuple(
    "milk bread apples coffee honey cheese pepper salmon lemon onion butter olives rice pasta sugar tea "
    "beans grapes melon carrot".split()
)
PEOPLE = tuple("Anna Boris Clara David Elena Frank Grace Hugo Irene Jonas Karin Luis Marta Nora Oscar Paula".split())
SUBJECTS = tuple("lunch meeting party rent trip game concert dinner exam visit taxi keys".split())
ITEMS = tuple("Lamp Chair Desk Shelf Sofa Clock".split())
CITIES = tuple("Paris Rome Oslo Cairo Lima Tokyo".split())
LANGUAGES = tuple("English French German Greek".split())
THEMES = tuple("Light Dark Ocean".split())
SIZES = tuple("Small Medium Large".split())
SWITCHES = tuple("Wifi VPN Hotspot Flight".split())
MISSING_SWITCHES = tuple("Radar Sonar Laser".split())

# What the interface itself says: applications, buttons, tabs, and the verbs of instructions and thoughts.
INTERFACE = tuple(
    "File Note Mail Conf Calc Web New Up Del Open Rename Delete Yes No OK Cancel Name Save All Copy Paste "
    "Cut Edit Reply Flag Send To Sub Body In Sent Trash Net Look Sound User Volume Mute Theme Text Lang Sum "
    "Clear City Item Size Gift Submit Thanks Order page Undo Empty Done items mails "
    "Turn on off Set the theme text size volume language to and user name Delete file Move folder Make a named "
    "Rename Open Write in new note save it as Replace of with by Send mail about saying from Flag every Put "
    "cell copy value sum column into clear Order for gift city Close window Bring front then Find Click Type "
    "Check Choose Drag Scroll Select Press double right Fill Go tab menu done cannot be Look at add end Empty "
    "trash Answer subject item write its is no such A B C D clicking down up list screen untitled Read "
    "all enter esc ctrl s click screen mail Entry You use computer".split()
)


def vocabulary() -> tuple[str, ...]:
    """Every word once, in a fixed order."""
    lists = (
        INTERFACE, FILES, FOLDERS, TEXTS, PEOPLE, SUBJECTS, ITEMS, CITIES, LANGUAGES, THEMES, SIZES, SWITCHES,
        MISSING_SWITCHES,
    )  # fmt: skip
    return tuple(dict.fromkeys(word for words in lists for word in words))
