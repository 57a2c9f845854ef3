"""Fills the guest's home folder from the template and the prepared home (`prepare_home.py`).

The template overrides the prepared home. Of LibreOffice's prepared settings, only the flags of a completed
first start are kept, no window state.
"""

from __future__ import annotations

import shutil
from pathlib import Path

FOLDERS = ("Desktop", "Documents", "Downloads", "Music", "Pictures", "Public", "Templates", "Videos")
REGISTRY = Path(".config/libreoffice/4/user/registrymodifications.xcu")
_SETUP_FLAGS = (
    "/org.openoffice.Setup/Product",
    "LastCompatibilityCheckID",
    "ooSetupInstCompleted",
    "ooLocale",
)
_CLOSING_TAG = "</oor:items>"


def fill_home(home: Path, template: Path, prepared: Path) -> None:
    """Names with the prefix `dot_` in the template become dot files. `prepared` may be missing."""
    if prepared.is_dir():
        shutil.copytree(prepared, home, dirs_exist_ok=True)
    prepared_settings = (home / REGISTRY).read_text("utf-8") if (home / REGISTRY).is_file() else ""
    for source in template.iterdir():
        shutil.copytree(source, home / source.name.replace("dot_", ".", 1), dirs_exist_ok=True)
    settings = (home / REGISTRY).read_text("utf-8")
    (home / REGISTRY).write_text(add_setup_flags(settings, prepared_settings), "utf-8")
    for name in FOLDERS:
        (home / name).mkdir(exist_ok=True)


def add_setup_flags(settings: str, prepared_settings: str) -> str:
    """Adds the lines of `prepared_settings` that mark LibreOffice's first start as completed."""
    flags = [line for line in prepared_settings.splitlines() if any(flag in line for flag in _SETUP_FLAGS)]
    missing = [line for line in flags if line not in settings]
    return settings.replace(_CLOSING_TAG, "".join(f"{line}\n" for line in missing) + _CLOSING_TAG)
