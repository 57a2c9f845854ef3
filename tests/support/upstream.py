"""Where OSWorld's own task files are, which are not part of the project: the tests of them skip without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("ARPO_OSWORLD") or Path(__file__).parents[3] / "shared" / "osworld")
VERIFIED = FOLDER / "verified"

needs_upstream = pytest.mark.skipif(
    not VERIFIED.is_dir(), reason="OSWorld's task files are not here: ARPO_OSWORLD names their folder"
)
