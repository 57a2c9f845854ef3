"""The Python example of docs/osworld.md runs, here with Desk in place of a real desktop."""

import os
import subprocess
import sys
from pathlib import Path

from arpo.actions import Click, Point, scale
from arpo.dialects.ui_tars import parse
from arpo.prompts.rendering import ChatRenderer
from arpo.testing import screenshot

ROOT = Path(__file__).parents[2]


def example():
    _, _, rest = (ROOT / "docs" / "osworld.md").read_text("utf-8").partition("```python\n")
    return rest.partition("```")[0]


def test_the_example_drives_an_environment(tmp_path):
    code = example().replace('"osworld_local"', '"desk"')
    this_checkout = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=this_checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(" 0.0\n")
    assert (tmp_path / "screen.png").read_bytes().startswith(b"\x89PNG")


def test_the_sizes_on_the_page_are_those_of_the_model():
    page = " ".join((ROOT / "docs" / "osworld.md").read_text("utf-8").split())
    assert "1920x1080 becomes 1932x1092, and (966, 546) is the centre" in page
    assert "scale(action, (1932, 1092), (1920, 1080))" in page
    assert ChatRenderer(3136, 2116800).model_size(screenshot(0, (1920, 1080))) == (1932, 1092)
    (click,) = parse("Action: click(start_box='(966,546)')").actions
    assert scale(click, (1932, 1092), (1920, 1080)) == Click(point=Point(960, 540))
