"""docs/differences.md: its settings exist, and its columns of recipes have the values of the recipes."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config
from arpo.config.recipe import keys, load_config, shipped_recipes

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "differences.md").read_text("utf-8")
NAMES = {key.name for key in keys()}
SECTIONS = {name.partition(".")[0] for name in NAMES}


def tables() -> Iterator[list[list[str]]]:
    """Each table of the page as rows of cells: its header, then the rows below the line."""
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        yield [rows[0], *rows[2:]]


def columns() -> dict[str, dict[str, str]]:
    """{recipe or "default": {setting: value on the page}}."""
    found: dict[str, dict[str, str]] = {}
    for header, *rows in tables():
        for index, name in enumerate(header):
            if header[0] == "setting" and name in {"default", *(f"`{one}`" for one in shipped_recipes())}:
                values = {row[0].strip("`"): row[index] for row in rows}
                found.setdefault(name.strip("`"), {}).update(values)
    return found


def value_of(config: Config, setting: str) -> Any:
    section, _, key = setting.partition(".")
    return getattr(getattr(config, section), key)


def test_every_setting_on_the_page_exists() -> None:
    spans = re.findall(r"`(?:--)?([a-z_]+\.[a-z_0-9]+)(?: = ([^`]+))?`", PAGE)
    named = {(name, value) for name, value in spans if name.partition(".")[0] in SECTIONS}
    assert len(named) > 25
    assert {name for name, _ in named} <= NAMES
    for name, value in named:
        if value:
            load_config(None, [f"--{name}", value])


@pytest.mark.parametrize("name", columns())
def test_the_page_has_the_values_of_the_recipe(name: str) -> None:
    config = Config() if name == "default" else load_config(name)
    for setting, cell in columns()[name].items():
        value = value_of(config, setting)
        shown = float(cell) if isinstance(value, int | float) else cell
        assert shown == value, setting


def test_the_page_covers_the_defaults_and_the_recipes() -> None:
    assert set(columns()) == {"default", "desk", "paper", "osworld_full", "osworld_eval"}
    assert {"optim.beta2", "optim.warmup_updates"} <= set(columns()["paper"])
    assert {"loss.format_weight", "loss.advantage", "replay.threshold"} <= set(columns()["osworld_full"])


def test_the_recipe_on_the_page_restores_the_settings_of_the_code(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "code.toml"
    path.write_text(text)
    config = load_config(path)
    header, *rows = next(tables())
    of_the_code = {row[0].strip("`"): row[header.index("code")] for row in rows}
    for setting, cell in of_the_code.items():
        value = value_of(config, setting)
        assert (float(cell) if isinstance(value, int | float) else cell) == value, setting
    set_by_it = {
        f"{section}.{key}"
        for section, part in tomllib.loads(text).items()
        if isinstance(part, dict)
        for key in part
    }
    assert set_by_it == set(of_the_code)


def test_both_osworld_recipes_share_the_settings_of_the_first_table() -> None:
    full, subset = load_config("osworld_full"), load_config("osworld_subset32")
    _, *rows = next(tables())
    sizes = {"train.tasks_per_batch", "env.parallel"}
    for setting in {row[0].strip("`") for row in rows} - sizes:
        assert value_of(full, setting) == value_of(subset, setting), setting


def test_the_page_is_linked() -> None:
    assert "(docs/differences.md)" in (ROOT / "README.md").read_text("utf-8")
    assert "(differences.md)" in (ROOT / "docs" / "recipes.md").read_text("utf-8")
