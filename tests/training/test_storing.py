"""Storing large screenshots during a run, and restoring the replay buffer."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config
from arpo.errors import UserError
from arpo.reporting.display import Display
from arpo.storage import screenshots
from arpo.storage.codec import screenshots_of
from arpo.storage.run_folder import PACK, TRAJECTORIES, RunFolder
from arpo.storage.screenshots import ScreenshotPack
from arpo.training.trainer import Trainer
from arpo.types import Screenshot, Trajectory
from trained import lines, train_to_end
from verdicts import A, B, Photographic, small_config

SAME = ("metrics.jsonl", "evaluations.jsonl", TRAJECTORIES, PACK)
# The base evaluation, then two episodes of each of two batches.
SCRIPT = {A: [0, 1, 0, 0, 0], B: [0, 0, 1, 0, 0]}


@pytest.fixture(autouse=True)
def small_screens_count_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screenshots, "PROCESS_PIXELS", 1)


def photographic(folder: Path, *more: str) -> Config:
    folder.mkdir(exist_ok=True)
    settings = ("--train.epochs=2", "--rollout.max_steps=2", "--rollout.max_answer_tokens=24", *more)
    return small_config(folder, [A, B], *settings, env="Photographic")


def content(config: Config) -> dict[str, bytes]:
    return {name: (Path(config.run.dir) / name).read_bytes() for name in SAME}


@pytest.mark.slow
def test_processes_encode_the_screenshots_and_the_files_are_those_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded_here: list[str] = []
    original = screenshots.encode

    def encode(*pictures: Any) -> bytes:
        encoded_here.append("one")
        return original(*pictures)

    monkeypatch.setattr(screenshots, "encode", encode)
    Photographic.play(SCRIPT)
    processes = photographic(tmp_path / "processes")
    train_to_end(Trainer, processes)
    assert not encoded_here
    monkeypatch.setattr(screenshots, "PROCESS_PIXELS", 1 << 30)
    Photographic.play(SCRIPT)
    here = photographic(tmp_path / "here")
    train_to_end(Trainer, here)
    assert encoded_here
    assert content(processes) == content(here)


@pytest.mark.slow
def test_a_screenshot_is_encoded_when_it_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: set[tuple[str, str]] = set()
    early: dict[tuple[str, str], bool] = {}  # whether all screenshots of an added episode were taken before
    prepare, add = RunFolder.prepare, RunFolder.add_trajectory

    def prepared(store: RunFolder, screenshot: Screenshot, previous: Screenshot | None) -> None:
        taken.add((store.folder.name, screenshot.sha256))
        prepare(store, screenshot, previous)

    def added(store: RunFolder, trajectory: Trajectory) -> None:
        folder = store.folder.name
        early[folder, trajectory.episode_id] = {
            (folder, shot.sha256) for shot in screenshots_of(trajectory)
        } <= taken
        add(store, trajectory)

    monkeypatch.setattr(RunFolder, "prepare", prepared)
    monkeypatch.setattr(RunFolder, "add_trajectory", added)
    Photographic.play(SCRIPT)
    train_to_end(Trainer, photographic(tmp_path, "--train.epochs=1"))
    batch = [f"batch-1-{index}-{number}" for index in (0, 1) for number in (0, 1)]
    evaluated = {episode for folder, episode in early if folder == "evaluating"}
    assert {"eval0-train-0-0", "eval1-heldout-0-0"} <= evaluated
    assert all(early["run", episode] for episode in batch)
    assert all(early["evaluating", episode] for episode in evaluated)


@pytest.mark.slow
def test_a_run_killed_while_it_stores_resumes_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Photographic.play(SCRIPT)
    whole, killed = photographic(tmp_path / "whole"), photographic(tmp_path / "killed")
    end_batch = Trainer._end_batch

    async def copied(trainer: Trainer, *arguments: Any) -> None:
        if trainer.run.progress.batch == 1:  # trained and perhaps not written: no checkpoint has the batch
            shutil.copytree(whole.run.dir, killed.run.dir)
        await end_batch(trainer, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_end_batch", copied)
        train_to_end(Trainer, whole)
    rest = {task: scores[3:] for task, scores in SCRIPT.items()}
    Photographic.play(rest)
    assert train_to_end(Trainer, killed).run.progress.batch == 2
    assert content(killed) == content(whole)


@pytest.fixture
def read_screenshots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the screenshots that are decoded from packs."""
    names: list[str] = []
    read = ScreenshotPack.read

    def counted(pack: ScreenshotPack, wanted: Iterable[str]) -> dict[str, Screenshot]:
        result = read(pack, wanted)
        names.extend(result)
        return result

    monkeypatch.setattr(ScreenshotPack, "read", counted)
    return names


@pytest.mark.slow
def test_a_resumed_run_decodes_only_the_episodes_that_it_replays(
    tmp_path: Path, read_screenshots: list[str]
) -> None:
    Photographic.play({A: [0, 1, 1], B: [0, 1, 1]})
    train_to_end(Trainer, photographic(tmp_path, "--train.epochs=1"))
    longer = photographic(tmp_path)
    with closing(RunFolder(Path(longer.run.dir))) as store:
        restored = Trainer(longer, store, Display()).replay
        assert sum(map(len, restored.state().values())) == 4
    assert read_screenshots == []

    Photographic.play({A: [0, 0], B: [1, 0]})
    train_to_end(Trainer, longer)
    assert lines(longer, "metrics.jsonl")[-1]["rescued"] == 1
    with closing(RunFolder(Path(longer.run.dir))) as store:
        stored = {one.episode_id: list(one.screenshots) for one in store.episodes()}
    assert read_screenshots in [stored["batch-1-0-0"], stored["batch-1-0-1"]]


@pytest.mark.slow
def test_the_replay_buffer_keeps_no_screenshots_in_memory(
    tmp_path: Path, read_screenshots: list[str]
) -> None:
    Photographic.play({A: [0, 1, 1, 0, 0], B: [0, 0, 0, 0, 0]})
    config = photographic(tmp_path)
    trainer = train_to_end(Trainer, config)
    assert lines(config, "metrics.jsonl")[-1]["rescued"] == 1
    with closing(RunFolder(Path(config.run.dir))) as store:
        stored = {one.episode_id: list(one.screenshots) for one in store.episodes()}
    assert read_screenshots in [stored["batch-1-0-0"], stored["batch-1-0-1"]]
    assert trainer.replay.state() == {A: ["batch-1-0-0", "batch-1-0-1"]}


@pytest.mark.slow
def test_a_damaged_screenshot_of_the_replay_buffer_is_found_at_the_start(tmp_path: Path) -> None:
    Photographic.play({A: [0, 1, 1], B: [0, 0, 0]})
    config = photographic(tmp_path, "--train.epochs=1")
    train_to_end(Trainer, config)
    pack = Path(config.run.dir) / PACK
    whole = pack.read_bytes()
    with closing(RunFolder(pack.parent)) as store:
        (name, *_), *_ = [one.screenshots for one in store.episodes() if one.episode_id == "batch-1-0-0"]
    at = whole.index(bytes.fromhex(name)) + 100
    pack.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with (
        closing(RunFolder(pack.parent)) as store,
        pytest.raises(
            UserError, match=rf"{PACK}: screenshot {name} at byte \d+ is damaged: restore the file"
        ),
    ):
        Trainer(config, store, Display())
