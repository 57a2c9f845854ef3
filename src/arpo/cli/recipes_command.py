"""`arpo recipes`: lists the shipped recipes, or prints one of them to start a recipe of your own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from arpo.cli.command import Command, argument
from arpo.config.recipe import find_recipe, nearest, shipped_recipes
from arpo.errors import UserError


def run_recipes(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Print the shipped recipe `name`; None: one line for each, from the first comment of its file."""
    name, names = options.name, shipped_recipes()
    if name is None:
        width = max(map(len, names))
        # Recipes of the top folder first, then their variants.
        for each in sorted(names, key=lambda each: (each.count("/"), each)):
            print(f"{each:<{width}}  {purpose(each)}")
        return 0
    if name not in names:
        remedy = nearest(name, names) or ": `arpo recipes` lists them"
        raise UserError(f"{name}: no such shipped recipe{remedy}")
    print(find_recipe(name).read_text("utf-8"), end="")
    return 0


def purpose(name: str) -> str:
    """The first line of the recipe's file, without its comment sign."""
    return find_recipe(name).read_text("utf-8").partition("\n")[0].removeprefix("# ")


COMMAND = Command(
    name="recipes",
    run=run_recipes,
    purpose="list the shipped recipes, or print one",
    lesson="""\
Prints one line for each shipped recipe: what it trains and what it needs. With NAME, prints the file.""",
    example="""\
arpo recipes
arpo recipes desk > mine.toml""",
    arguments=(argument("name", "name of a shipped recipe", nargs="?", metavar="NAME"),),
)
