"""The settings in which the methods of a comparison differ, shown before anything is trained."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from arpo.config import INCIDENTAL, Config
from arpo.config.recipe import changed, own_settings, value
from arpo.reporting.display import count_noun

NEUTRAL_KEYS = (*INCIDENTAL, "run.", "optim.tokens_per_microbatch")  # change results by rounding at most


def differing_keys(one: Config, other: Config) -> list[str]:
    """Keys with different values and an effect on results."""
    return [key for key in changed(one, other) if not key.startswith(NEUTRAL_KEYS)]


def describe_differences(
    configs: Mapping[str, Config], reference: str, recipes: Mapping[str, str]
) -> list[str]:
    """Lines with the settings of each method that differ from the reference, and hints.

    `recipes` has the recipe of each method that is trained, by its name.
    """
    lines = []
    for name, config in configs.items():
        if name == reference:
            continue
        keys = differing_keys(configs[reference], config)
        count = f"differs from {reference} in {count_noun(len(keys), 'setting')}"
        lines.append(f"{name} {count if keys else f'has the settings of {reference}'}")
        width = max(map(len, keys), default=0)
        for key in keys:
            own, other = (json.dumps(value(one, key)) for one in (config, configs[reference]))
            lines.append(f"  {key:{width}}  {own} ({reference}: {other})")
        if name in recipes and reference in recipes:
            lines += _hint(recipes[name], recipes[reference], keys)
    return lines


def _hint(recipe: str, reference: str, differing: list[str]) -> list[str]:
    """A hint for a recipe that differs in keys which it does not set: its author may not know that."""
    if not Path(recipe).is_file():
        return []
    extended, own = own_settings(Path(recipe))
    others = [key for key in differing if key not in own]
    if extended is not None or not others:
        return []
    if Path(reference).is_file():
        reference = os.path.relpath(reference, Path(recipe).parent)
    return [
        f"  {recipe} sets {len(own)} of these keys; the others have their defaults. To start from the other "
        f'recipe, put this line first in {recipe}: extends = "{reference}"'
    ]
