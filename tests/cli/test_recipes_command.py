"""`arpo recipes`."""

import pytest

from arpo.cli.entry_point import main
from arpo.config.recipe import load_config, shipped_recipes


def test_every_shipped_recipe_has_one_line_from_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines) == shipped_recipes()
    assert lines[0].split(maxsplit=1) == [
        "desk",
        "Tiny model, 32 tasks of the built-in desktop, groups of 2. Two CPU cores, 6 to 15 minutes.",
    ]
    for line in lines:
        assert line.endswith(".") and len(line) < 140, line


def test_a_printed_recipe_is_a_recipe(capsys: pytest.CaptureFixture[str], tmp_path) -> None:
    assert main(["recipes", "paper/grpo"]) == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out, "utf-8")
    assert load_config(tmp_path / "mine.toml") == load_config("paper/grpo")


def test_an_unknown_name_is_one_line_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes", "deks"]) == 2
    assert capsys.readouterr().err == "arpo: error: deks: no such shipped recipe (did you mean desk?)\n"
    assert main(["recipes", "gimp"]) == 2
    assert capsys.readouterr().err == (
        "arpo: error: gimp: no such shipped recipe: `arpo recipes` lists them\n"
    )
