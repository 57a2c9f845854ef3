"""An installed light desktop, for tests that must not depend on this machine's programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from arpo.envs.osworld import runnable


def install_desktop(patch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Make a folder with the sandbox's programs and a program for each application. Returns the folder."""
    folder.mkdir(exist_ok=True)
    for name in (*runnable.SANDBOX_PROGRAMS, *runnable.NETWORK_PROGRAMS, *runnable.PROGRAMS):
        (folder / name).touch(mode=0o755)
    patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    patch.setattr(runnable, "PROGRAMS", {name: (str(folder / name),) for name in runnable.PROGRAMS})
    return folder
