"""The methods of a comparison: recipes and finished runs, their names and settings, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from arpo.cli.entry_point import main
from arpo.comparison.methods import (
    Method,
    describe_differences,
    find_methods,
)
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.errors import UserError
from comparisons import RunRecords, write_run

SCORES = {"train": {"a": [1, 0], "b": [0, 0]}}
DONE = RunRecords(base=SCORES, final=SCORES, batches=((4, 1, 2, 3.0),))


def find(word: str) -> Method:
    return find_methods([word])[0]


def test_a_recipe_keeps_its_name_and_a_file_is_named_after_its_stem(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("")
    names = [method.name for method in find_methods(["paper/grpo", str(tmp_path / "mine.toml"), "desk"])]
    assert names == ["paper-grpo", "mine", "desk"]


def test_names_must_differ_and_not_be_reserved(tmp_path: Path) -> None:
    (tmp_path / "desk.toml").write_text("")
    (tmp_path / "base.toml").write_text("")
    with pytest.raises(UserError, match="desk has the name 'desk' too: rename one of them"):
        find_methods(["desk", str(tmp_path / "desk.toml")])
    with pytest.raises(UserError, match="the name 'base' is reserved in a comparison"):
        find_methods([str(tmp_path / "base.toml")])


def test_a_folder_is_one_run_or_the_runs_in_it(tmp_path: Path) -> None:
    for seed in (1, 0):
        write_run(tmp_path / "mine" / f"seed-{seed}", DONE)
    several = find(str(tmp_path / "mine"))
    assert several.name == "mine"
    assert several.runs == {seed: tmp_path / "mine" / f"seed-{seed}" for seed in (0, 1)}
    single = find(str(tmp_path / "mine" / "seed-1"))
    assert (single.name, list(single.runs)) == ("mine", [1])
    named = find(f"other={tmp_path}/mine/seed-1,{tmp_path}/mine/seed-0")
    assert named.name == "other" and named.runs == several.runs


def test_recipes_are_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.toml").write_text("")
    (tmp_path / "desk").mkdir()  # the shipped recipe has the name; ./desk is the folder
    write_run(tmp_path / "runs" / "seed-0", DONE)
    methods = find_methods(["desk", "a=b.toml", "runs", "mispelled"])
    assert [bool(method.runs) for method in methods] == [False, False, True, False]


def test_folders_that_cannot_be_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "mine" / "seed-0", replace(DONE, final={}))
    write_run(tmp_path / "x" / "seed-3", DONE)
    write_run(tmp_path / "y" / "seed-3", DONE)
    (tmp_path / "empty").mkdir()
    run = tmp_path / "mine" / "seed-0"
    for word, reason in {
        str(
            run
        ): f"{run}: this run is unfinished: finish it with `arpo train {run}/recipe.toml --run.dir {run}`",
        str(tmp_path / "empty"): "empty: contains no runs: give the folder of a run",
        f"z={tmp_path}/x,{tmp_path}/none": "none: no such folder: give the folder of a run",
        f"z={tmp_path}/x,{tmp_path}/y": "y/seed-3: has the seed 3 of",
    }.items():
        with pytest.raises(UserError) as caught:
            find(word)
        assert reason in str(caught.value)


def test_finished_runs_are_compared_without_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    better = {"train": {"a": [1, 1], "b": [1, 0]}}
    plain = replace(Config(), replay=replace(Config().replay, enabled=False))
    write_run(tmp_path / "arpo" / "seed-0", replace(DONE, final=better))
    write_run(tmp_path / "grpo" / "seed-0", replace(DONE, config=plain))
    out = tmp_path / "new" / "out"
    words = [f"plain={tmp_path}/grpo", str(tmp_path / "arpo"), "--out", str(out)]
    assert main(["compare", *words]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("arpo differs from plain in 1 setting\n  replay.enabled  true (plain: false)\n")
    lines = [line.split() for line in printed.splitlines()]
    assert ["base", "model", "25.0", "–", "–", "–", "–"] in lines
    assert ["plain", "25.0", "10", "1:40", "25%", "50%"] in lines
    assert ["arpo", "75.0", "10", "1:40", "25%", "50%"] in lines
    assert "\nDifference from plain in percentage points, with its 95% interval:\n" in printed
    assert ["arpo", "training", "tasks", "(2)", "+50.0"] in [line[:5] for line in lines]
    assert printed.endswith(f"\n{out}/compare.html\n")
    assert main(["compare", "--report", *words]) == 0
    assert "75.0" in capsys.readouterr().out


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "mine" / "seed-0", DONE)
    mine, out = str(tmp_path / "mine"), ["--out", str(tmp_path / "out")]
    for words, reason in (
        ([mine, "desk", *out], "compare needs --seeds N to train desk"),
        ([mine, mine, *out], "has the name 'mine' too"),
        ([f"base={mine}", *out], "the name 'base' is reserved in a comparison"),
        ([mine, *out, "--optim.lr", "1"], "--optim.lr: nothing is trained: remove it"),
        ([mine, *out, "--against", "mime"], "mime: not part of this comparison (did you mean mine?)"),
    ):
        assert main(["compare", *words]) == 2
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


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
