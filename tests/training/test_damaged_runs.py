"""Runs that cannot resume as they are: the message names the file, and nothing is lost."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from arpo.config import Config
from arpo.errors import UserError
from arpo.reporting.display import Display
from arpo.storage.run_folder import RunFolder
from arpo.training.trainer import Trainer, run_training
from trained import train_to_end
from verdicts import A, B, Scripted, small_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A finished run with one success in its replay buffer."""
    Scripted.play({A: [0, 1, 0]})
    config = small_config(tmp_path_factory.mktemp("finished"), [A, B])
    trainer = train_to_end(Trainer, config)
    assert list(trainer.replay.state()) == [A]
    return config


@pytest.fixture
def config(finished: Config, tmp_path: Path) -> Config:
    """A copy of the run, to be damaged."""
    copy = shutil.copytree(finished.run.dir, tmp_path / "run")
    return replace(finished, run=replace(finished.run, dir=str(copy)))


def refusal(config: Config) -> str:
    store = RunFolder(Path(config.run.dir))
    try:
        with pytest.raises(UserError) as caught:
            Trainer(config, store, Display())
    finally:
        store.close()
    return str(caught.value)


@pytest.mark.parametrize("wrong", ["beyond the vocabulary", "negative", "one image token less"])
def test_tokens_that_the_model_cannot_have_sampled_are_refused(config: Config, wrong: str) -> None:
    path = Path(config.run.dir) / "trajectories.jsonl"
    lines = path.read_bytes().split(b"\n")
    index, record = next(
        (number, record)
        for number, record in enumerate(map(json.loads, lines[:-1]))
        if record["episode_id"].startswith("batch") and record["score"] == 1
    )
    turn = record["turns"][0]
    if wrong == "one image token less":
        longest = max((run for run in turn["context"] if isinstance(run, list)), key=lambda run: run[1])
        longest[1] -= 1
    else:
        turn["completion"]["token_ids"][0] = 1_000_000 if wrong == "beyond the vocabulary" else -1
    turn["completion"]["text"] = ""
    changed = json.dumps(record, separators=(",", ":")).encode()
    lines[index] = changed[:-1] + b" " * (len(lines[index]) - len(changed)) + b"}"  # the offsets stay
    path.write_bytes(b"\n".join(lines))
    assert "trajectories.jsonl: damaged, the tokens of episode 'batch-1-" in refusal(config)


@pytest.mark.parametrize("key", ["offsets", "progress", "pool", "replay"])
def test_a_checkpoint_of_a_wrong_form_is_named_and_nothing_is_removed(config: Config, key: str) -> None:
    run = Path(config.run.dir)
    newest = max((run / "checkpoints").iterdir())
    (newest / "state.json").write_text(json.dumps(json.loads((newest / "state.json").read_text()) | {key: 3}))
    manifest = json.loads((newest / "manifest.json").read_text())
    content = (newest / "state.json").read_bytes()
    manifest["files"]["state.json"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (newest / "manifest.json").write_text(json.dumps(manifest))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert re.search(rf"state\.json: damaged, {key}.*: restore the file", refusal(config))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_that_has_lost_its_checkpoints_is_not_emptied(config: Config) -> None:
    run = Path(config.run.dir)
    shutil.rmtree(run / "checkpoints")
    before = (run / "trajectories.jsonl").read_bytes()
    assert "checkpoints: no intact checkpoint is left. Restore one, or remove the run folder" in refusal(
        config
    )
    assert (run / "trajectories.jsonl").read_bytes() == before


def test_a_damaged_list_of_skipped_tasks_is_named(config: Config) -> None:
    (Path(config.run.dir) / "skipped.json").write_text("[" * 100_000)
    assert "skipped.json: damaged, nested too deeply: restore the file" in refusal(config)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_the_model_never_replaces_a_link_or_a_file(config: Config, tmp_path: Path, kind: str) -> None:
    model = Path(config.run.dir) / "model"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious").write_text("mine")
    if kind == "file":
        model.write_text("mine")
    else:
        model.symlink_to(tmp_path / "other")
    with pytest.raises(
        UserError, match=r"model: is a link or a file, .*: move it to another folder, then run the"
    ):
        run_training(config)
    assert (tmp_path / "other" / "precious").read_text() == "mine" and model.exists()
