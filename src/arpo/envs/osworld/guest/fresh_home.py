"""The guest's fresh home: the template, and what applications wrote at their first start elsewhere.

Of LibreOffice's own settings only the marks of a completed set-up are taken over: none of its windows' state.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
REGISTRY = Path(".config/libreoffice/4/user/registrymodifications.xcu")
_MARKS = ("/org.openoffice.Setup/Product", "LastCompatibilityCheckID", "ooSetupInstCompleted", "ooLocale")
_END = "</oor:items>"


def prepare_home(home: Path, template: Path, warm: Path) -> None:
    """In the template, dot_ at the beginning of a name stands for a dot. There may be no warm folder."""
    if warm.is_dir():
        shutil.copytree(warm, home, dirs_exist_ok=True)
    written = (home / REGISTRY).read_text("utf-8") if (home / REGISTRY).is_file() else ""
    for source in template.iterdir():
        shutil.copytree(source, home / source.name.replace("dot_", ".", 1), dirs_exist_ok=True)
    settings = (home / REGISTRY).read_text("utf-8")
    (home / REGISTRY).write_text(with_marks(settings, written), "utf-8")
    for name in FOLDERS:
        (home / name).mkdir(exist_ok=True)


def with_marks(settings: str, written: str) -> str:
    """The settings, and those of the written ones that say that LibreOffice has been set up."""
    marks = [line for line in written.splitlines() if any(mark in line for mark in _MARKS)]
    fresh = [line for line in marks if line not in settings]
    return settings.replace(_END, "".join(f"{line}\n" for line in fresh) + _END)
