"""Quarantine of tasks and outages of all environments, in training runs on Desk."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from arpo.cli.entry_point import main
from arpo.config import Config
from arpo.config.recipe import to_toml
from arpo.errors import Outage
from arpo.reporting.display import Display
from arpo.storage.checkpoint import CHECKPOINTS, latest
from arpo.storage.codec import group_of
from arpo.storage.run_folder import RunFolder
from arpo.training.run import Run
from arpo.training.trainer import Trainer, run_training
from trained import lines, train_to_end
from verdicts import A, B, Reachable, Scripted, small_config


def train(config: Config) -> Trainer:
    return train_to_end(Trainer, config)


class StopsAfter(Display):
    """Asks its run to stop after a batch, as Ctrl-C does."""

    run: Run

    def __init__(self, batch: int) -> None:
        self._batch = batch

    def batch(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.stopping = step == self._batch


@pytest.mark.slow
def test_a_task_set_aside_is_tried_again_after_some_batches_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set aside after batch 2; trials in batches 4 and 8."""
    Scripted.play({B: [0, 1] * 20})
    monkeypatch.setattr("arpo.envs.pool.BATCHES_ASIDE", 2)
    settings = ("--env.attempts=1", "--env.quarantine_after=3")
    recipes = [
        small_config(tmp_path, [A, B], *settings, f"--train.epochs={epochs}", env="Fragile")
        for epochs in (5, 9)
    ]
    display = StopsAfter(4)
    with closing(RunFolder(Path(recipes[0].run.dir))) as store:
        store.write_recipe(recipes[0])
        stopped = Trainer(recipes[0], store, display)
        display.run = stopped.run
        assert not asyncio.run(stopped.train())
    train(recipes[1])
    kinds = {
        group_of(group_of(failure["episode_id"])): failure["kind"]
        for failure in lines(recipes[1], "failures.jsonl")
    }
    assert [number for number in range(1, 10) if kinds[f"batch-{number}"] == "EnvError"] == [1, 2, 4, 8]


def outage_config(folder: Path, *overrides: str) -> Config:
    settings = ("--train.epochs=3", "--env.attempts=2", "--env.parallel=1", "--env.quarantine_after=1")
    return small_config(folder, [A, B], *settings, *overrides, env="Reachable")


class Notes(Display):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


VERDICTS = {A: [0, 1, 0, 0, 0, 1, 1], B: [1, 1, 1, 0, 0, 1, 0]}


@pytest.fixture(scope="module")
def metrics_without_outage(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    Scripted.play(VERDICTS)
    whole = outage_config(tmp_path_factory.mktemp("whole"))
    train(whole)
    return lines(whole, "metrics.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_a_run_without_environments_ends_and_resumes_where_it_was(
    tmp_path: Path,
    every: int,
    metrics_without_outage: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Scripted.play(VERDICTS)
    parts = outage_config(tmp_path, f"--store.checkpoint_every={every}", "--env.outage_seconds=0")
    monkeypatch.setattr(
        Reachable, "starts", 8
    )  # three of the base evaluation, four of batch 1, one of batch 2
    with pytest.raises(Outage, match=r"start: OSError: no display\. Correct the environments, then run the"):
        run_training(parts, Display())
    newest, _ = latest(Path(parts.run.dir) / CHECKPOINTS)
    assert newest is not None and newest.step == 1
    assert not (Path(parts.run.dir) / "failures.jsonl").read_text("utf-8")

    monkeypatch.setattr(Reachable, "starts", math.inf)
    Scripted.play({task: scores[3:] for task, scores in VERDICTS.items()})
    trainer = train(parts)
    assert not trainer.run.scheduler.pool.quarantine.tasks
    assert lines(parts, "metrics.jsonl") == metrics_without_outage


@pytest.mark.slow
def test_a_pause_is_reported_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted.play({A: [0, 1, 0, 0, 0], B: [1, 1, 1, 0, 0]})
    config, display = outage_config(tmp_path, "--train.epochs=1"), Notes()
    monkeypatch.setattr("arpo.processes.backoff.FIRST_SECONDS", 0.001)
    monkeypatch.setattr(Reachable, "starts", 4)
    real = display.note

    def repair(text: str) -> None:
        real(text)
        if "no environment works" in text:
            Reachable.starts = math.inf

    monkeypatch.setattr(display, "note", repair)
    assert run_training(config, display) == 0
    [first, second] = [text for text in display.texts if "environment" in text]
    assert first.startswith("no environment works (start: OSError: no display). The run pauses, next attempt")
    assert second.startswith("the environments work again after")
    assert lines(config, "timing.jsonl")[0]["outage"] > 0
    assert not (Path(config.run.dir) / "failures.jsonl").read_text("utf-8")


def stop_in_the_outage(display: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C when the display says that no environment works."""
    note = display.note

    def stop(text: str) -> None:
        note(text)
        if "no environment works (" in text:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(display, "note", stop)


@pytest.mark.slow
def test_a_stop_ends_a_pause_and_the_run_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scripted.play({A: [0, 1, 0, 0, 0], B: [1, 1, 1, 0, 0]})
    config, display = outage_config(tmp_path), Notes()
    monkeypatch.setattr(Reachable, "starts", 8)
    monkeypatch.setattr("arpo.processes.backoff.FIRST_SECONDS", 3600.0)
    monkeypatch.setattr("arpo.processes.backoff.LONGEST_SECONDS", 3600.0)
    stop_in_the_outage(display, monkeypatch)
    assert run_training(config, display) == 130
    assert "stopping: no environment works. Only batch 2 is lost" in "\n".join(display.texts)
    assert display.texts[-1] == "saved after batch 1. Run the same command again to resume"
    monkeypatch.setattr(Reachable, "starts", math.inf)
    assert len(lines(config, "metrics.jsonl")) == 2
    train(config)
    assert len(lines(config, "metrics.jsonl")) == 4


@pytest.mark.slow
def test_the_last_line_names_the_newest_checkpoint_if_a_part_of_a_batch_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batch 2 has a group without signal. The outage begins with the group that replaces it."""
    Scripted.play({A: [0, 0, 1, 0, 0], B: [1, 1, 0, 1, 0]})
    dynamic = ("--train.dynamic_sampling=true", "--replay.enabled=false", "--store.checkpoint_every=3")
    config, display = outage_config(tmp_path, *dynamic), Notes()
    monkeypatch.setattr(Reachable, "starts", 11)
    stop_in_the_outage(display, monkeypatch)
    assert run_training(config, display) == 130
    newest, _ = latest(Path(config.run.dir) / CHECKPOINTS)
    assert newest is not None and newest.step == 0
    assert display.texts[-1] == "saved after batch 0. Run the same command again to resume"


def test_arpo_train_exits_with_code_1_after_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Scripted.play({})
    config = outage_config(tmp_path, "--env.outage_seconds=0")
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(config), "utf-8")
    monkeypatch.setattr(Reachable, "starts", 8)
    assert main(["train", str(recipe)]) == 1
    error = capsys.readouterr().err
    assert "arpo: error: no environment has worked for 0 s (env.outage_seconds): start: OSError" in error
    assert "Correct the environments, then run the same command again to resume" in error
