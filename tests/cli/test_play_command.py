"""`arpo play`: the printed steps, the saved screenshots, and the messages for wrong tasks and faults."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from argparse import Namespace
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from arpo.cli import completion
from arpo.cli.entry_point import main
from arpo.config import Config, EnvConfig, RolloutConfig, TasksConfig
from arpo.storage.run_folder import RunFolder
from arpo.viewer.export import index_all
from arpo.viewer.library import Library
from verdicts import HELDOUT, A, Scripted, select, small_config, without_evaluator
from viewed_runs import make_run, played

LONG = "pool-300"  # more than two steps
FRESH_TASK = "fresh-0-7-SetTheme"


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
        f"screenshots: {tmp_path / 'steps'}; `arpo view {tmp_path / 'steps'}` shows the episode",
    ]
    assert sorted(path.name for path in (tmp_path / "steps").glob("*.png")) == [
        *("end.png", "step-001.png", "step-002.png"),
    ]
    with Image.open(tmp_path / "steps" / "step-001.png") as drawing:
        distances = np.abs(np.array(drawing, dtype=int) - (0xF0, 0x44, 0x2E)).max(axis=-1)
    assert distances.min() < 16  # the mark of the click; its edges are smooth


def test_a_task_without_an_evaluator_has_no_score(tmp_path, capsys):
    config = small_config(tmp_path, [A])
    without_evaluator(tmp_path, A)
    words = ["--tasks.train", config.tasks.train, "--tasks.heldout", "", "--env.name", "verdicts:Scripted"]
    assert (
        main(["play", A, *words, "--env.partial", "0", "--rollout.max_steps", "1", "--run.threads", "1"]) == 0
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2] == "no score (the task has no evaluator): ran out of steps (1)"


@pytest.mark.slow
def test_the_viewer_opens_what_save_wrote_and_the_gif_shows_every_step(words, tmp_path, capsys):
    Scripted.play({LONG: [1.0]})
    saved, gif = tmp_path / "steps", tmp_path / "gifs" / "episode.gif"
    assert main(["play", LONG, "--save", str(saved), "--gif", str(gif), *words]) == 0
    assert f"animation: {gif}" in capsys.readouterr().out
    with Image.open(gif) as animation:
        assert len(list(ImageSequence.Iterator(animation))) == 3  # two steps and the end
    with closing(Library([saved])) as library:
        index_all(library)
        episode = library.answer(["s", "steps", "episodes", "play"], {})
        (entry,) = library.answer(["sources"], {})["sources"]
    assert (entry["kind"], entry["live"]) == ("played", False)
    assert (episode["task"], episode["score"], len(episode["steps_list"])) == (LONG, 1.0, 2)
    assert (episode["end"], episode["phase_title"]) == ("solved: ran out of steps (2)", "arpo play")
    assert episode["final"]["url"]


def test_save_keeps_a_run(words, tmp_path, capsys):
    make_run(tmp_path / "run")
    before = (tmp_path / "run" / "trajectories.jsonl").read_bytes()
    assert main(["play", A, "--save", str(tmp_path / "run"), *words]) == 2
    assert f"{tmp_path / 'run'}: contains a run: choose another folder" in capsys.readouterr().err
    assert (tmp_path / "run" / "trajectories.jsonl").read_bytes() == before


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of desk:fresh with the base model as its result."""
    folder = tmp_path / "run"
    make_run(folder)
    with closing(RunFolder(folder)) as store:
        tasks = TasksConfig(train="desk:fresh", heldout="desk:heldout", distinct=1)
        store.write_recipe(
            Config(tasks=tasks, rollout=RolloutConfig(max_steps=1), env=EnvConfig(partial=0.0))
        )
        store.add_trajectory(played("batch-3-0-0", FRESH_TASK, 1.0, 2))
    (folder / "model").symlink_to(Path(str(files("arpo"))) / "envs" / "desk" / "base_model" / "weights")
    return folder


def test_it_plays_a_generated_task_of_a_run_with_its_model(run, capsys):
    assert main(["play", FRESH_TASK, "--run", str(run), "--run.threads", "1"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"task {FRESH_TASK}: ")
    assert "1 step in " in printed[-1]


def test_it_lists_the_tasks_of_a_run(run, capsys):
    assert main(["play", "--run", str(run)]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["task", "before", "after", "set,", "instruction"]
    found = {row.split()[0]: row for row in rows}
    assert list(found) == ["heldout-006", FRESH_TASK, "pool-013", "pool-021", "pool-040"]
    assert re.search(r" 0% +100%  training", found["pool-040"])
    assert "training: Set the theme to Light" in found[FRESH_TASK]
    assert last == f"5 tasks. Play one: arpo play TASK --run {run}"


def test_tab_offers_the_tasks_of_a_run(run):
    tasks = ["random", "heldout-006", FRESH_TASK, "pool-013", "pool-021", "pool-040"]
    assert completion._tasks(Namespace(run=run)) == tasks
    assert completion._tasks(Namespace(run=None)) == ["random"]


def test_a_task_that_the_run_does_not_have_names_the_list(run, capsys):
    assert main(["play", "heldout-0060", "--run", str(run)]) == 2
    error = capsys.readouterr().err
    assert "did you mean heldout-006?" in error and f"`arpo play --run {run}` lists its 5 tasks" in error


@pytest.mark.slow
def test_watch_shows_the_episode_until_ctrl_c(words, tmp_path):
    command = [sys.executable, "-m", "arpo", "play", LONG, "--watch", *words]
    command[command.index("verdicts:Scripted")] = "desk"
    environment = {**os.environ, "BROWSER": "true"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        lines = iter(process.stdout.readline, "")
        address = next(line for line in lines if line.startswith("watch it: ")).split()[-1]
        assert address.endswith("#/s/episode/episode/play?step=end")
        assert next(line for line in lines if line.startswith("Ctrl-C ends the viewer"))
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        browser.open(address).read()
        site = address.partition("?")[0]
        episode = json.load(browser.open(f"{site}api/s/episode/episodes/play"))
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    assert len(episode["steps_list"]) == 2 and episode["score"] == 0.0


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
        (A, "--run nowhere", "nowhere: not a run folder"),
        (A, "--run nowhere --recipe desk", "--recipe: the run has its own recipe"),
        ("", "", "TASK: is missing: give the id of a task, or random"),
    ],
)
def test_mistakes_and_faults_are_one_line(words, capsys, task, more, reason):
    assert main(["play", *filter(None, [task]), *words, *more.split()]) == 2
    assert f"arpo: error: {reason}" in capsys.readouterr().err
