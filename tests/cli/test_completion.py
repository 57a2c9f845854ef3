"""Words that the shell offers, as argcomplete asks for them."""

import os
import subprocess
import sys

import pytest


def offered(line: str, folder: str | os.PathLike[str] = ".") -> list[str]:
    """What TAB offers at the end of `line`. argcomplete writes to descriptor 8."""
    script = f"{sys.executable} -m arpo 8>&1 >/dev/null 2>&1 9>&1"
    asked = {
        "_ARGCOMPLETE": "3",  # words to leave out: python -m
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": f"python -m {line}",
        "COMP_POINT": str(len(f"python -m {line}")),
        "COMP_TYPE": "9",
    }
    command = ["bash", "-c", script]
    return subprocess.check_output(command, cwd=folder, env=os.environ | asked, text=True).split("\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("arpo tra", {"train"}),
        ("arpo train --optim.l", {"--optim.lr"}),
        ("arpo train --loss.ratio r", {"recompute"}),
        ("arpo train osworld_1", {"osworld_128"}),
        ("arpo train mi", {"mine.toml", "miniwob"}),
        ("arpo play --gi", {"--gif"}),
    ],
)
def test_what_tab_offers(line, words, tmp_path):
    (tmp_path / "mine.toml").write_text("")
    assert set(offered(line, tmp_path)) == words
