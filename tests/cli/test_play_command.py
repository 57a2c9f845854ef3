"""`arpo play`: the printed steps, the saved screenshots, and the messages for wrong tasks and faults."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from arpo.cli.entry_point import main
from verdicts import HELDOUT, A, Scripted, select

LONG = "pool-300"  # more than two steps


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    train = select(tmp_path / "train.json", "desk:pool", [A, "pool-010", LONG])
    heldout = select(tmp_path / "heldout.json", "desk:heldout", [HELDOUT])
    settings = f"--tasks.train {train} --tasks.heldout {heldout} --rollout.max_steps 2 --run.threads 1"
    return [*settings.split(), "--env.name", "verdicts:Scripted", "--env.partial", "0"]


def test_it_prints_each_step_and_the_score(words, tmp_path, capsys):
    Scripted.play({LONG: [1.0]})
    assert main(["play", LONG, "--save", str(tmp_path / "steps"), *words]) == 0
    printed = re.sub(r"\d+\.\d s", "0.0 s", capsys.readouterr().out).splitlines()
    assert printed[0].startswith(f"task {LONG}: ")
    assert re.fullmatch(r"  1 +0.0 s  \w.+", printed[1]), printed
    assert re.fullmatch(r" {14}click\(start_box='\(\d+,\d+\)'\)", printed[2]), printed
    assert printed[-3:] == [
        "score 1: solved: ran out of steps (2)",
        "2 steps in 0.0 s",
        f"screenshots: {tmp_path / 'steps'}",
    ]
    assert sorted(path.name for path in (tmp_path / "steps").iterdir()) == [
        *("end.png", "step-001.png", "step-002.png"),
    ]
    with Image.open(tmp_path / "steps" / "step-001.png") as drawing:
        distances = np.abs(np.array(drawing, dtype=int) - (0xF0, 0x44, 0x2E)).max(axis=-1)
    assert distances.min() < 16  # the mark of the click; its edges are smooth


def test_an_answer_that_does_not_parse_is_shown(words, capsys):
    Scripted.play({})
    cut = ["--rollout.max_answer_tokens", "3"]
    assert main(["play", "random", *words, *cut]) == 0
    printed = capsys.readouterr().out
    assert "not an action: the answer was cut at 3 tokens" in printed
    assert "score 0: the answer was cut at 3 tokens" in printed


@pytest.mark.parametrize(
    ("task", "more", "reason"),
    [
        ("pool-0010", "", "'pool-0010': no such task in the recipe (did you mean pool-010?)"),
        ("x", "", "'x': no such task in the recipe (valid: pool-001, pool-010, pool-300, heldout-006)"),
        (A, "--env.name verdicts:Fragile", f"task {A}, step: RuntimeError: the screen went dark"),
        (A, "--model.path nowhere", "nowhere"),
    ],
)
def test_mistakes_and_faults_are_one_line(words, capsys, task, more, reason):
    assert main(["play", task, *words, *more.split()]) == 2
    assert f"arpo: error: {reason}" in capsys.readouterr().err
