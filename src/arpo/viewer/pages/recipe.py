"""The recipe of a run as JSON. Follows no path in a recipe."""

from __future__ import annotations

from typing import Any

from arpo.config import Config
from arpo.config.recipe import keys, parse_recorded, value
from arpo.errors import UserError
from arpo.storage.run_folder import RECIPE
from arpo.viewer.files import SafeFolder


def read_recipe(folder: SafeFolder) -> tuple[Config, str]:
    """The settings and the text of recipe.toml. Keys and values of other versions are left out.

    Raises UserError if there is no readable recipe.
    """
    try:
        text = folder.read(RECIPE).decode("utf-8", "replace")
        return parse_recorded(text)[0], text
    except UserError as error:
        raise UserError(f"{folder.path(RECIPE)}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{folder.path(RECIPE)}: cannot be read as TOML: {error}") from None


def recipe_json(config: Config, text: str) -> dict[str, Any]:
    """All keys by section, with their defaults and help texts."""
    sections: dict[str, list[dict[str, Any]]] = {}
    for key in keys():
        own = value(config, key.name)
        sections.setdefault(key.name.partition(".")[0], []).append(
            {
                "key": key.name,
                "value": own,
                "default": key.default,
                "changed": own != key.default,
                "help": key.help,
            }
        )
    return {"sections": [{"section": name, "keys": found} for name, found in sections.items()], "text": text}
