"""Page "Recipe": all settings of a run, with their defaults and help texts."""

from __future__ import annotations

from arpo.config.recipe import keys, value
from arpo.errors import UserError
from arpo.viewer.run_source import RunSource
from arpo.viewer.source import Json


def recipe_page(run: RunSource) -> Json:
    """All keys by section. Raises UserError if the recipe cannot be read."""
    if run.recipe_error:
        raise UserError(run.recipe_error)
    sections: dict[str, list[Json]] = {}
    for key in keys():
        own = value(run.config, key.name)
        sections.setdefault(key.name.partition(".")[0], []).append(
            {
                "key": key.name,
                "value": own,
                "default": key.default,
                "changed": own != key.default,
                "help": key.help,
                "history": [str(change) for change in run.changes if change.key == key.name],
            }
        )
    listed = [{"section": name, "keys": found} for name, found in sections.items()]
    return {"sections": listed, "text": run.recipe_text}
