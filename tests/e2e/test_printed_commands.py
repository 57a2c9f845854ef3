"""Every command that a message, a help text or a docstring names is accepted by the command line."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import arpo
from arpo.cli.commands import COMMANDS
from arpo.cli.entry_point import parse_command
from arpo.config.recipe import keys
from arpo.errors import UserError

SOURCE = Path(arpo.__file__).parent
QUOTED = re.compile(r"`(arpo [^`]+)`")
LINE = re.compile(
    rf"^(?:[\w ]+: )?(arpo (?:{'|'.join(command.name for command in COMMANDS)})(?: .*)?)$", re.MULTILINE
)
VALUE = "VALUE"  # in place of a formatted value
ENDS = ("…", "|", "<", ">", ">&-")  # what follows is not part of the command
NEEDS_MORE = re.compile(r"the following arguments are required|needs |expected one argument")


def texts(tree: ast.AST) -> Iterator[str]:
    """All texts of a module, with VALUE for formatted values."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            parts = [part.value if isinstance(part, ast.Constant) else VALUE for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.value


def commands() -> list[str]:
    """Commands in backticks, and lines that are a command."""
    found: set[str] = set()
    for path in sorted(SOURCE.rglob("*.py")):
        for text in texts(ast.parse(path.read_text("utf-8"))):
            found.update(QUOTED.findall(text))
            found.update(LINE.findall(text.replace("\\\n", " ")))
    return sorted({" ".join(one.split()) for one in found})


def refusal(command: str) -> str:
    """Why the command line refuses a command; "" if it does not."""
    words = shlex.split(command)[1:]
    for end in ENDS:
        words = words[: words.index(end)] if end in words else words
    if not words or words[0] in ("COMMAND", VALUE):
        return ""
    try:
        _, _, overrides = parse_command(words)
    except SystemExit as ended:  # --help
        return str(ended.code or "")
    except UserError as error:  # a command alone, as in "`arpo osworld` helps", needs more
        return "" if NEEDS_MORE.search(str(error)) else str(error)
    named = {word[2:].partition("=")[0] for word in overrides if word.startswith("--")}
    return ", ".join(named - {key.name for key in keys()})


@pytest.mark.slow
def test_every_printed_command_is_accepted() -> None:
    printed = commands()
    assert len(printed) > 60
    assert {"arpo screen --tasks VALUE --out kept.json", "arpo train VALUE --run.dir VALUE"} <= set(printed)
    assert {command: why for command in printed if (why := refusal(command))} == {}


def test_a_wrong_command_is_refused() -> None:
    assert "unknown option" in refusal("arpo screen --taks VALUE --out kept.json")
    assert refusal("arpo train --optim.rank 8") == "optim.rank"
    assert "unknown command" in refusal("arpo trian desk")
