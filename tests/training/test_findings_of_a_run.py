"""A run whose answers become useless says so at once, at its end, and in its report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from arpo.engines.base import Prompt, Sampling
from arpo.engines.in_process import InProcessEngine
from arpo.reporting.display import Display
from arpo.training.trainer import run_training
from arpo.types import Completion
from arpo.viewer.export import write_report
from markup import report_of
from verdicts import Scripted, shipped_list, small_config


class Shown(Display):
    """Notes, batches and the summary, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def batch(self, step: int, metrics: Any) -> None:
        self.lines.append(f"BATCH {step}")

    def summary(self, summary: Any) -> None:
        self.lines.append("SUMMARY")


@pytest.mark.parametrize(
    ("later", "beginning", "found"),
    [
        (
            "Action: wait()",
            "The model nearly always",
            "(training batch 2), 100% of 8 answers are 'wait()'. It was different",
        ),
        (
            "Action: hotkey(key='{episode} Submit",
            "The answers cannot be read.",
            "(training batch 2), 8 of 8 tasks with different instructions have an answer without a valid",
        ),
    ],
)
def test_useless_answers_are_named_when_they_begin_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: str, beginning: str, found: str
) -> None:
    Scripted.play({})
    tasks = list({one["instruction"]: name for name, one in shipped_list("pool").items()}.values())[:8]
    config = small_config(
        tmp_path, tasks, "--train.epochs=3", "--train.tasks_per_batch=8", "--rollout.group_size=2"
    )
    generate = InProcessEngine.generate

    async def answer(self: Any, prompt: Prompt, sampling: Sampling) -> Completion:
        """Different answers before training and in batch 1, useless ones later."""
        completion = await generate(self, prompt, sampling)
        varied = prompt.episode_id.startswith(("eval0-", "batch-1-"))
        text = "Action: type(content='{episode}')" if varied else later
        return replace(completion, text=text.replace("{episode}", prompt.episode_id))

    monkeypatch.setattr(InProcessEngine, "generate", answer)
    display = Shown()
    assert run_training(config, display) == 0
    named = [n for n, line in enumerate(display.lines) if line.startswith(beginning)]
    first, last = named
    assert display.lines[first - 1] == "BATCH 1" and display.lines[last - 1] == "SUMMARY"
    assert found in display.lines[first]
    report = report_of(write_report(Path(config.run.dir)))
    assert report["warnings"] == [display.lines[last]]
    assert "(evaluation after batch 3)" in display.lines[last]
