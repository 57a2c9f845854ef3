"""Completion in a shell: commands, options, config keys, recipes, and the tasks of a run.

    eval "$(register-python-argcomplete arpo)"    # in ~/.bashrc or ~/.zshrc

The shell then starts `arpo` with _ARGCOMPLETE in its environment, and reads the words that fit.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import get_args

import argcomplete

from arpo.cli.command import Command
from arpo.config.recipe import keys, shipped_recipes


def complete(parser: argparse.ArgumentParser, commands: Mapping[str, argparse.ArgumentParser]) -> None:
    """Print the words that fit, and end the process."""
    for own in commands.values():
        command: Command = own.get_default("command")
        for action in own._actions:
            if action.dest == "recipe":
                action.completer = _recipes  # type: ignore[attr-defined]
            elif (command.name, action.dest) == ("play", "task"):
                action.completer = _tasks  # type: ignore[attr-defined]
        for key in keys() if command.settings else ():
            text = key.help.replace("%", "%%")
            own.add_argument(f"--{key.name}", help=text, choices=get_args(key.type) or None)
    argcomplete.autocomplete(parser)


def _recipes(prefix: str, **_: object) -> list[str]:
    files: list[str] = argcomplete.FilesCompleter(("toml",))(prefix)
    return [*shipped_recipes(), *files]


def _tasks(parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Those of --run, if it stands before: `arpo play --run runs/desk pool-`."""
    from arpo.cli.play_command import played_tasks

    rows = played_tasks(parsed_args.run) if parsed_args.run else []
    return ["random", *(row["task"] for row in rows)]
