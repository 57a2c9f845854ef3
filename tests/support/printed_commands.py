"""The commands that the source prints: in messages, help texts, recipes and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import arpo
from arpo.cli.commands import COMMANDS

SOURCE = Path(arpo.__file__).parent
VALUE = "VALUE"  # in place of a formatted value
_NAMES = "|".join([*sorted((command.name for command in COMMANDS), reverse=True), f"{VALUE}(?= --)"])
_QUOTED = re.compile(r"`((?:\w+=\w+ )?arpo (?:[A-Za-z]|--)[^`]*)`")
# Without backticks, a command ends with its line, or at a punctuation mark.
_PLAIN = re.compile(
    rf"(?:\b\w+=\w+ )?\barpo (?:{_NAMES})(?![\w-])(?:'[^'\n]*'|(?![,;:.](?:[\s<]|$))[^\n`\"'<)])*",
    re.MULTILINE,
)
_COMMENT = re.compile(r"^\s*//.*$", re.MULTILINE)  # JavaScript


@cache
def printed_commands() -> tuple[str, ...]:
    """All commands, in which VALUE stands for a formatted value."""
    found: set[str] = set()
    for text in printed_texts():
        found.update(commands_in(text))
    return tuple(sorted(found))


def commands_in(text: str) -> list[str]:
    """Commands in backticks, and others up to the end of their line or sentence.

    >>> commands_in("Try `arpo check-env`, or see: arpo play --help")
    ['arpo check-env', 'arpo play --help']
    """
    text = re.sub(r"\{\w+\}", VALUE, text.replace("\\\n", " "))  # the latter in a text for str.format
    found = [*_QUOTED.findall(text), *_PLAIN.findall(_QUOTED.sub("", text))]
    return [" ".join(one.split()) for one in found]


def printed_texts() -> Iterator[str]:
    """Literals of the modules, and the other files of the source, if they contain a command."""
    for path in sorted(SOURCE.rglob("*")):
        if path.suffix not in (".py", ".toml", ".js", ".html", ".sh"):
            continue
        content = path.read_text("utf-8")
        if not re.search(r"\barpo[ \[]|\bmake ", content):
            continue
        if path.suffix == ".py":
            yield from _literals(ast.parse(content))
        else:
            yield _COMMENT.sub("", content) if path.suffix == ".js" else content


def _literals(tree: ast.AST) -> Iterator[str]:
    """All texts of a module, with VALUE for formatted values."""
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            parts = [part.value if isinstance(part, ast.Constant) else VALUE for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in inside:
            yield node.value
