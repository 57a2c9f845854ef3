"""The Python example of docs/osworld.md, word for word, on a light desktop."""

import subprocess
import sys

import pytest

from osworld_files import PYTHON, ROOT

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="desktop-env is not installed: make osworld")


def test_the_example_drives_a_desktop(tmp_path):
    _, _, rest = (ROOT / "docs" / "osworld.md").read_text("utf-8").partition("```python\n")
    words = [sys.executable, "-c", rest.partition("```")[0]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "calc-total 0.0\n"
    assert (tmp_path / "screen.png").read_bytes().startswith(b"\x89PNG")
