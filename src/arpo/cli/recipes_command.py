"""`arpo recipes`: lists the shipped recipes, or prints one of them to start a recipe of your own."""

from __future__ import annotations

from arpo.config.recipe import find_recipe, nearest, shipped_recipes
from arpo.errors import UserError


def run_recipes(name: str | None) -> int:
    """Print the shipped recipe `name`; None: one line for each, from the first comment of its file."""
    names = shipped_recipes()
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
