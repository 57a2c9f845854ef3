"""Settings in which compared recipes differ, and the hint about extends."""

from __future__ import annotations

from pathlib import Path

import pytest

from arpo.comparison.settings import describe_differences
from arpo.config.recipe import load_config


def described(*recipes: str) -> list[str]:
    names = {Path(recipe).stem: recipe for recipe in recipes}
    configs = {name: load_config(recipe) for name, recipe in names.items()}
    return describe_differences(configs, next(iter(names)), names)


def test_a_recipe_that_does_not_extend_the_other_gets_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.toml").write_text("[replay]\nenabled = false\n[run]\nthreads = 1\n")
    first, *keys, hint = described("desk", "plain.toml")
    assert first == f"plain differs from desk in {len(keys)} settings"
    assert len(keys) > 4 and "  replay.enabled          false (desk: true)" in keys
    assert hint.endswith('put this line first in plain.toml: extends = "desk"')
    Path("plain.toml").write_text('extends = "desk"\n[replay]\nenabled = false\n[run]\nthreads = 1\n')
    assert described("desk", "plain.toml") == [
        "plain differs from desk in 1 setting",
        "  replay.enabled  false (desk: true)",
    ]


def test_the_hint_names_a_file_relative_to_the_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("one.toml").write_text("[optim]\nlr = 0.5\n")
    Path("sub/other.toml").write_text("[loss]\nkl = 0.25\n")
    assert described("one.toml", "sub/other.toml")[-1].endswith('extends = "../one.toml"')
    Path("sub/other.toml").write_text("[loss]\nkl = 0.25\n[optim]\nlr = 0.1\n")
    assert "extends" not in described("one.toml", "sub/other.toml")[-1]  # it sets all that differs
    Path("same.toml").write_text('extends = "desk"\n')
    assert described("desk", "same.toml") == ["same has the settings of desk"]
