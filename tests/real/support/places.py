"""Where the tests on real desktops find what is not part of the project."""

import json
import os
from pathlib import Path

import pytest

from arpo.types import Task

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-osworld" / "bin" / "python"


def osworld_folder():
    """OSWorld's task files, in the folder that ARPO_OSWORLD names or in ../shared/osworld; else skips."""
    named = os.environ.get("ARPO_OSWORLD")
    folder = Path(named) if named else ROOT.parent / "shared" / "osworld"
    for tasks in (folder, folder / "verified"):
        if (tasks / "examples").is_dir():
            return tasks
    pytest.skip(f"OSWorld's task files are not in {folder}: set ARPO_OSWORLD to the folder with examples/")


def osworld_task(name):
    """By domain and the beginning of its id: "os/e0df059f"."""
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
