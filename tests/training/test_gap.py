"""`arpo doctor --gap`: tells planted faults of an engine apart."""

from __future__ import annotations

import asyncio
import json
import shlex
from contextlib import closing
from pathlib import Path

import pytest

from arpo.cli.entry_point import main
from arpo.config import Config
from arpo.errors import UserError
from arpo.reporting.display import Display
from arpo.storage.run_folder import RunFolder
from arpo.training.gap import find_gap
from arpo.training.trainer import Trainer
from arpo.viewer.export import write_report
from engine_faults import (
    Plant,
    lost_layer,
    misreported,
    no_adapters,
    no_pixels,
    old_weights,
    other_dtype,
    other_size,
    other_temperature,
    other_template,
    swapped_images,
)
from markup import report_of
from verdicts import A, B, Scripted, small_config


class Notes(Display):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def train(config: Config, plant: Plant) -> list[str]:
    """Train with this engine. Returns the notes."""
    display = Notes()
    with closing(RunFolder(Path(config.run.dir))) as store:
        store.write_recipe(config)
        trainer = Trainer(config, store, display)
        with closing(trainer.run):
            plant(trainer.run.scheduler.agent.engine)
            assert asyncio.run(trainer.train())
    return display.texts


@pytest.mark.slow
def test_the_command_of_the_alarm_names_the_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Scripted.play({})
    words = ("--train.epochs=2", "--tasks.heldout=", "--eval.rollouts=0", "--train.engine_kl_alarm=1e-9")
    config = small_config(tmp_path, [A, B], *words)  # a model that is certain: the difference is small
    notes = train(config, other_temperature)
    alarm = next(text for text in notes if "engine and learner disagree" in text)
    _, command = alarm.split("To find the cause: ")
    assert main(shlex.split(command)[1:]) == 1
    shown = capsys.readouterr().out
    assert "Cause: sampling: the engine uses temperature 0.7, the learner 1. Compare rollout.temp" in shown
    assert "probabilities of the worst tokens:" in shown and "of batch-2-" in shown
    gap = report_of(write_report(Path(config.run.dir)))["gap"]
    assert gap["conclusion"] in shown
    assert gap["tried"][0]["part"] == "sampling" and len(gap["tried"]) == 5
    assert all(one["engine"] != one["learner"] for one in gap["worst"])

    (Path(config.run.dir) / "gap.json").write_text(json.dumps({"version": "x"}), "utf-8")
    assert report_of(write_report(Path(config.run.dir)))["gap"] is None


def test_without_a_run_or_with_other_options_there_is_one_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--gap", str(tmp_path)]) == 2
    assert "not a run folder: recipe.toml is missing" in capsys.readouterr().err
    assert main(["doctor", "--gap", str(tmp_path), "--recipe", "desk"]) == 2
    assert "--gap: has no other options" in capsys.readouterr().err


def desk_config(folder: Path, *words: str) -> Config:
    """Two batches of the shipped model; episodes of up to three steps."""
    settings = ("--rollout.max_steps=3", "--train.epochs=2", "--tasks.heldout=", "--eval.rollouts=0")
    return small_config(folder, [A, B], "--model.path=base", *settings, *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "cause"),
    [
        (other_temperature, "sampling: the engine uses temperature 0.7, the learner 1."),
        (no_pixels, "pictures: the engine sees no pixels."),
        (swapped_images, "pictures: the engine sees the pictures in reverse order."),
        (other_size, "pictures: the engine resizes pictures to "),
        (other_template, "template: the engine's prompt lacks the last token."),
        (lost_layer, "weights: the engine lacks the weights of language layer 2."),
        (other_dtype, "dtype: the engine computes in bfloat16, the learner in float32."),
        (misreported, ""),
    ],
)
def test_faults_are_told_apart(tmp_path: Path, plant: Plant, cause: str) -> None:
    Scripted.play({})
    config = desk_config(tmp_path, "--train.engine_kl_alarm=1e-6")  # rounding gives 3e-6 here
    train(config, plant)
    gap = find_gap(Path(config.run.dir))
    assert gap.disagrees
    if cause:
        assert f"Cause: {cause}" in gap.conclusion
    else:
        assert gap.cause is None and "None of the tried differences explains it" in gap.conclusion


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "words"),
    [(old_weights, ["--optim.lr=1e-3"]), (no_adapters, ["--optim.lr=1e-2", "--model.train=lora"])],
)
def test_faults_of_the_weights(tmp_path: Path, plant: Plant, words: list[str]) -> None:
    config = desk_config(tmp_path, "--rollout.temperature=2", "--optim.warmup_updates=0", *words)
    Scripted.play({A: [0, 1] * 8, B: [1, 0] * 8})
    train(config, plant)
    assert (
        "Cause: weights: the engine has the weights before training."
        in find_gap(Path(config.run.dir)).conclusion
    )


@pytest.mark.slow
def test_a_sound_engine_agrees(tmp_path: Path) -> None:
    Scripted.play({})
    config = desk_config(tmp_path)
    train(config, lambda engine: None)
    assert find_gap(Path(config.run.dir)).conclusion.startswith("Engine and learner agree (version 1 of")
    for checkpoint in (Path(config.run.dir) / "checkpoints").glob("step-*/manifest.json"):
        checkpoint.unlink()
    with pytest.raises(UserError, match="no stored answer was sampled with the weights of a checkpoint"):
        find_gap(Path(config.run.dir))
