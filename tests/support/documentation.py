"""The commands that README.md, CONTRIBUTING.md and docs/*.md show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
_ARPO = re.compile(r"(?:^|[\s/])arpo ((?:[a-z]|--).*)")
# Words of the pages that stand for something of the reader, and what the tests put in their place.
PLACEHOLDERS = {
    "ByteDance-Seed/UI-TARS-1.5-7B": "base",
    "/models/UI-TARS-1.5-7B": "base",
    "UI-TARS-1.5-7B": "base",
    "MODEL": "base",
    "FILE": "doorbell_tasks.json",
    "FOLDER": "base",
    "MODULE:CLASS": "doorbell:Doorbell",
    "NAME": "name",
    "N": "3",
    "RECIPE": "desk",
    "RUN": "runs/desk",
    "TASK": "random",
    "TASK-ID": "random",
    "URL": "http://127.0.0.1:8000/v1",
}


def read_page(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def shown_commands(page: str) -> list[list[str]]:
    """Words after `arpo` of every command in a block of the page, or in its text if it has arguments.

    A command of the text without arguments names the command: `arpo train`. Optional parts "[…]" and "…" are
    left out.
    """
    text = read_page(page)
    found = [words for line in _block_lines(text) if (words := _words(line))]
    found += [words for line in _spans(text) if (words := _words(line)) and len(words) > 1]
    return [list(words) for words in dict.fromkeys(map(tuple, found))]


def named_commands(page: str) -> set[str]:
    """First word of every command of the page."""
    text = read_page(page)
    return {words[0] for line in (*_block_lines(text), *_spans(text)) if (words := _words(line))}


def _block_lines(text: str) -> Iterator[str]:
    for kind, body in _FENCED.findall(text):
        if kind in ("sh", "bash"):
            yield from body.replace("\\\n", " ").splitlines()
    for block in _INDENTED.findall(_FENCED.sub("", text)):
        yield from block.replace("\\\n", " ").splitlines()


def _spans(text: str) -> Iterator[str]:
    for span in re.findall(r"`([^`]+)`", _FENCED.sub("", text)):
        yield span.replace("\n", " ")


def _words(line: str) -> list[str]:
    """Words after `arpo`, with placeholders replaced; empty if the line has no such command."""
    line = re.sub(r"(^|\s)#\s.*", "", line)
    if not (match := _ARPO.search(line)):
        return []
    shown = re.sub(r"\[[^]]*\]|…", "", match[1])
    return [PLACEHOLDERS.get(word, word) for word in shlex.split(shown)]
