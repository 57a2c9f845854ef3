"""Files outside the project for tests on real desktops: desktop-env's interpreter and OSWorld's tasks."""

import json
import os
from pathlib import Path

import pytest

from arpo.types import Task

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-osworld" / "bin" / "python"


def osworld_folder():
    """Folder of OSWorld's task files: $ARPO_OSWORLD or ../shared/osworld. Skips the test if there is none."""
    configured = os.environ.get("ARPO_OSWORLD")
    folder = Path(configured) if configured else ROOT.parent / "shared" / "osworld"
    for tasks in (folder, folder / "verified"):
        if (tasks / "examples").is_dir():
            return tasks
    pytest.skip(f"OSWorld's task files are not in {folder}: set ARPO_OSWORLD to the folder with examples/")


def osworld_task(name):
    """A task by domain and beginning of its id, for example "os/e0df059f"."""
    (file,) = (osworld_folder() / "examples").glob(f"{name}*.json")
    entry = json.loads(file.read_text("utf-8"))
    return Task(
        id=entry["id"],
        instruction=entry["instruction"],
        snapshot=entry["snapshot"],
        config=tuple(entry.get("config", ())),
        evaluator=entry["evaluator"],
        related_apps=tuple(entry["related_apps"]),
        domain=file.parent.name,
    )
