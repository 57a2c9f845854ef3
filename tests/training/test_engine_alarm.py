"""Training runs whose engine reports wrong log-probabilities in one batch."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arpo.config import Config
from arpo.engines.base import Prompt, Sampling
from arpo.reporting.display import Display, total_rows
from arpo.storage.run_folder import RunFolder
from arpo.training.trainer import Trainer
from arpo.types import Completion
from arpo.viewer.export import write_report
from markup import report_of
from trained import lines
from verdicts import A, B, Scripted, small_config


class Notes(Display):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def train(config: Config, *, stop_after: int = 0) -> tuple[Trainer, list[str]]:
    """Train. In batch 2 the engine reports a fifth of the true probabilities."""
    display = Notes()
    with closing(RunFolder(Path(config.run.dir))) as store:
        store.write_recipe(config)
        trainer = Trainer(config, store, display)
        engine: Any = trainer.run.scheduler.agent.engine
        generate = engine.generate

        async def misreport(prompt: Prompt, sampling: Sampling) -> Completion:
            answer = await generate(prompt, sampling)
            if not prompt.episode_id.startswith("batch-2-"):
                return answer
            return replace(answer, logprobs=tuple(logprob - 1.6 for logprob in answer.logprobs))

        engine.generate = misreport
        if stop_after:
            display.batch = lambda step, metrics: setattr(  # type: ignore[method-assign]
                trainer.run, "stopping", step == stop_after
            )
        assert asyncio.run(trainer.train()) == (not stop_after)
        store.write_summary(trainer.run.records.summary())
    return trainer, display.texts


def script() -> None:
    Scripted.play({A: [0, 1, 0, 1, 0, 0, 1, 0], B: [1, 1, 0, 0, 1, 1, 0, 1]})


def test_a_batch_whose_engine_disagrees_is_reported(tmp_path: Path) -> None:
    script()
    config = small_config(tmp_path, [A, B], "--train.epochs=3")
    trainer, notes = train(config)
    [note] = [text for text in notes if "engine_kl" in text]
    assert note.startswith("batch 2: engine and learner disagree, engine_kl is 2.")
    assert (
        "above train.engine_kl_alarm = 1e-05. The batch was trained on: train.engine_kl_skip = true" in note
    )
    _, first, second, third = lines(config, "metrics.jsonl")
    assert second["engine_alarm"] == 1 and second["updates"] == 1 and "untrained" not in second
    assert "engine_alarm" not in first and "engine_alarm" not in third
    assert first["engine_kl"] < 1e-6
    (warning,) = report_of(write_report(Path(config.run.dir)))["warnings"]
    assert "exceeded its threshold in batch 2. Not trained on: 0 of 1." in warning
    assert trainer.run.progress.untrained == 0


@pytest.mark.slow
def test_by_option_the_batch_is_stored_and_not_trained_on_also_after_a_stop(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole, parts = (
        small_config(tmp_path / name, [A, B], "--train.epochs=3", "--train.engine_kl_skip=true")
        for name in ("whole", "parts")
    )
    script()
    trainer, notes = train(whole)
    assert any(
        "The batch was not trained on. To find the cause: arpo doctor --gap " in text for text in notes
    )
    _, _, second, third = lines(whole, "metrics.jsonl")
    assert (second["untrained"], second["updates"], second["episodes"]) == (1, 0, 8)
    assert third["updates"] == 1
    assert len([line for line in lines(whole, "trajectories.jsonl") if "batch-2-" in str(line)]) == 4
    summary = trainer.run.records.summary()
    assert summary["untrained_batches"] == 1
    assert ("batches not trained on", "1") in total_rows(summary)
    (warning,) = report_of(write_report(Path(whole.run.dir)))["warnings"]
    assert "in batch 2. Not trained on: 1 of 1." in warning

    script()
    train(parts, stop_after=2)
    resumed, _ = train(parts)
    assert lines(parts, "metrics.jsonl") == lines(whole, "metrics.jsonl")
    assert resumed.run.progress.untrained == 1


def test_a_batch_in_which_nothing_was_compared_says_so(tmp_path: Path) -> None:
    """All answers claim to be of version 0, also those that the check asks for."""
    script()
    config = small_config(tmp_path, [A, B], "--train.epochs=3", "--train.max_staleness=2")
    display = Notes()
    with closing(RunFolder(Path(config.run.dir))) as store:
        store.write_recipe(config)
        trainer = Trainer(config, store, display)
        engine: Any = trainer.run.scheduler.agent.engine
        generate = engine.generate

        async def claim(prompt: Prompt, sampling: Sampling) -> Completion:
            answer = await generate(prompt, sampling)
            return replace(answer, versions=(0,) * len(answer.versions))

        engine.generate = claim
        assert asyncio.run(trainer.train())
    _, first, *others = lines(config, "metrics.jsonl")
    assert first["engine_tokens"] and "engine_kl" in first
    assert [line["engine_tokens"] for line in others] == [0, 0]
    assert not any("engine_kl" in line or "logprob_gap" in line for line in others)
    notes = [text for text in display.texts if "compared" in text]
    same = "engine and learner were not compared: no answer of the current weights"
    assert notes == [f"batch {number}: {same}" for number in (2, 3)]
    assert (
        "Engine and learner were not compared in batch 2, 3."
        in report_of(write_report(Path(config.run.dir)))["warnings"]
    )
