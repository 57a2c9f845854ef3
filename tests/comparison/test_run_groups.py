"""Finished run folders as methods of a comparison: names, seeds, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from arpo.cli.entry_point import main
from arpo.comparison.run_groups import find_runs, split_words
from arpo.config import Config
from arpo.errors import UserError
from comparisons import RunRecords, write_run

SCORES = {"train": {"a": [1, 0], "b": [0, 0]}}
DONE = RunRecords(base=SCORES, final=SCORES, batches=((4, 1, 2, 3.0),))


def test_a_folder_is_one_run_or_the_runs_in_it(tmp_path: Path) -> None:
    for seed in (1, 0):
        write_run(tmp_path / "mine" / f"seed-{seed}", DONE)
    several = find_runs(str(tmp_path / "mine"))
    assert several is not None and several.name == "mine"
    assert several.folders == {seed: tmp_path / "mine" / f"seed-{seed}" for seed in (0, 1)}
    single = find_runs(str(tmp_path / "mine" / "seed-1"))
    assert single is not None and (single.name, list(single.folders)) == ("mine", [1])
    named = find_runs(f"other={tmp_path}/mine/seed-1,{tmp_path}/mine/seed-0")
    assert named is not None and named.name == "other" and named.folders == several.folders


def test_recipes_are_no_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.toml").write_text("")
    (tmp_path / "desk").mkdir()  # the shipped recipe has the name; ./desk is the folder
    write_run(tmp_path / "runs" / "seed-0", DONE)
    recipes, groups = split_words(["desk", "a=b.toml", "runs", "mispelled"])
    assert recipes == ["desk", "a=b.toml", "mispelled"] and list(groups) == ["runs"]


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
            find_runs(word)
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
