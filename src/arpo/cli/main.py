"""The `arpo` command: from words to one of `commands.py`.

A user's mistake is one line on stderr and exit code 2; anything else that escapes is a fault and shows as
one.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from arpo import __version__
from arpo.cli.commands import COMMANDS, Command
from arpo.errors import UserError
from arpo.recipe import keys, nearest

_DOTTED = re.compile(r"--\w+\.[\w.-]+(=.*)?", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    # Before torch is loaded: threads that spin while they wait make it crawl on cores that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except UserError as error:
        print(f"arpo: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "arpo: stopped; train, collect, screen, pretrain and eval osworld go on with the same command",
            file=sys.stderr,
        )
        return 130


def _run(argv: Sequence[str]) -> int:
    words, overrides = split_overrides(argv)
    if words[:2] == ["eval", "osworld"]:
        words[:2] = ["eval osworld"]
    names = [command.name for command in COMMANDS]
    if words and not words[0].startswith("-") and words[0] not in names:
        raise UserError(f"{words[0]!r}: no such command{nearest(words[0], names)}")
    options, unknown = _parser().parse_known_args(words)
    command: Command = options.command
    if unknown:
        raise UserError(_unexpected(unknown[0], command))
    if overrides and not command.settings:
        raise UserError(f"{overrides[0]}: arpo {command.name} takes no settings")
    return command.run(options, overrides)


def _unexpected(word: str, command: Command) -> str:
    if not word.startswith("-"):
        return f"{word!r}: unexpected word (see: arpo {command.name} --help)"
    flags = [name for names, _ in command.arguments for name in names.split() if name.startswith("-")]
    settings = [f"--{key.name}" for key in keys()] if command.settings else []
    return f"{word}: no such option{nearest(word.partition('=')[0], [*flags, '--help', *settings])}"


def split_overrides(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """["train", "--loss.kl", "0.1", "desk"] -> ["train", "desk"], ["--loss.kl", "0.1"]"""
    plain: list[str] = []
    overrides: list[str] = []
    words = iter(argv)
    for word in words:
        if not _DOTTED.fullmatch(word):
            plain.append(word)
        elif "=" in word:
            overrides.append(word)
        else:
            overrides += [word, *([value] if (value := next(words, None)) is not None else [])]
    return plain, overrides


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see: {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="arpo",
        description="Train agents that work a computer through screenshots, mouse and keyboard.",
        epilog="New here? `arpo doctor` says what works on this machine; `arpo train` trains on it.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"arpo {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        example = "\n".join(f"  {line}" for line in command.example.splitlines())
        listing = "\n\nevery setting: arpo train --help-keys" if command.settings else ""
        own = commands.add_parser(
            command.name,
            help=command.purpose,
            description=f"{command.purpose[0].upper()}{command.purpose[1:]}.\n\n{command.lesson}",
            epilog=f"example:\n{example}{listing}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for names, details in command.arguments:
            own.add_argument(*names.split(), **details)
        own.set_defaults(command=command)
    return parser
