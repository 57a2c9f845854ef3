"""The description of a command, and arguments shared by several commands."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arpo.config.checks import shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and its help: purpose (one line), lesson (explanation) and example."""

    name: str
    run: Callable[[argparse.Namespace, Sequence[str]], int]
    purpose: str
    lesson: str
    example: str
    arguments: tuple[tuple[str, dict[str, Any]], ...] = ()
    settings: bool = False  # whether it accepts --section.key VALUE
    resumable: bool = False  # by the same command; one with the option --out only if it is given


def argument(name: str, help: str, **details: Any) -> tuple[str, dict[str, Any]]:
    """Arguments for argparse: name, and keyword arguments of `add_argument`."""
    return name, {"help": help, **details}


RECIPE_HELP = "TOML file or name of a shipped recipe"


def recipe_argument(
    default: str | None = "desk", help: str = f"{RECIPE_HELP} (default: %(default)s)"
) -> tuple[str, dict[str, Any]]:
    """The recipe as an optional positional argument."""
    text = f"{help}; change its keys with --section.key VALUE"
    return argument("recipe", text, nargs="?", default=default, metavar="RECIPE")


def count(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise argparse.ArgumentTypeError(f"is {shorten(text)}, must be an integer >= 1, <= 9999")
    return int(text)
