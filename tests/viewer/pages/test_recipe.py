"""Recipes in the browser: values and defaults; a hostile recipe reads no other file."""

from contextlib import closing

import pytest

from arpo.config import Config, ReplayConfig
from arpo.config.changes import Change
from arpo.config.recipe import to_toml
from arpo.errors import UserError
from arpo.storage.run_folder import RunFolder
from arpo.viewer.files import SafeFolder
from arpo.viewer.library import Library
from arpo.viewer.run_source import read_recipe


def test_a_recipe_with_its_defaults(tmp_path):
    (tmp_path / "recipe.toml").write_text(to_toml(Config(replay=ReplayConfig(enabled=False))))
    (tmp_path / "metrics.jsonl").touch()
    page = Library([tmp_path]).answer(["s", tmp_path.name, "recipe"], {})
    sections = {part["section"]: part["keys"] for part in page["sections"]}
    enabled = next(key for key in sections["replay"] if key["key"] == "replay.enabled")
    assert (enabled["value"], enabled["default"], enabled["changed"]) == (False, True, True)
    assert [key["key"] for key in sections["replay"] if key["changed"]] == ["replay.enabled"]


def test_a_setting_that_was_changed_on_resume_shows_from_which_batch(tmp_path):
    with closing(RunFolder(tmp_path)) as store:
        store.write_recipe(Config())
        store.write_changes([Change(batch=6, key="env.parallel", before="8", after="32")])
    library, shown = Library([tmp_path]), "env.parallel = 32 from batch 6 (before: 8)"
    page = library.answer(["s", tmp_path.name, "recipe"], {})
    history = {key["key"]: key["history"] for part in page["sections"] for key in part["keys"]}
    assert {key: texts for key, texts in history.items() if texts} == {"env.parallel": [shown]}
    report = library.answer(["s", tmp_path.name, "report"], {})
    assert ("changed setting", shown) in report["totals"]


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"changes": [{"batch": "6"}]}', "[" * 5000])
def test_a_damaged_record_of_changes_is_left_out(tmp_path, text):
    RunFolder(tmp_path).close()
    (tmp_path / "recipe.toml").write_text(to_toml(Config()))
    (tmp_path / "changes.json").write_text(text)
    assert Library([tmp_path]).answer(["s", tmp_path.name, "recipe"], {})["sections"]


def test_no_other_recipe_is_read_and_keys_of_other_versions_are_left_out(tmp_path):
    (tmp_path / "secret.toml").write_text("[loss]\nkl = 0.5\n")
    text = (
        f'extends = "{tmp_path / "secret.toml"}"\n[replay]\nenabled = false\nfuture = 1\n[unknown]\na = 1\n'
    )
    (tmp_path / "recipe.toml").write_text(text)
    config, _ = read_recipe(SafeFolder(tmp_path))
    assert (config.replay.enabled, config.loss.kl) == (False, Config().loss.kl)


@pytest.mark.parametrize("text", ["not toml", "[loss]\nkl = -1\n", "[loss]\nkl = 'x'\n", "a = " + "[" * 5000])
def test_a_damaged_recipe_is_one_error(tmp_path, text):
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(UserError, match=r"recipe\.toml"):
        read_recipe(SafeFolder(tmp_path))
