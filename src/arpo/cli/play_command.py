"""`arpo play`: plays one task with a model, and prints each step while it happens."""

from __future__ import annotations

import time
from pathlib import Path

from arpo.actions import render
from arpo.api import Episode, Step, play
from arpo.config import Config
from arpo.errors import ArpoFault, UserError, printable
from arpo.reporting.display import count_noun
from arpo.types import Task
from arpo.viewer.outcomes import describe_end


def run_play(task: str, config: Config, save: Path | None) -> int:
    """Play the task with this id, or a random one. `save` is a folder for drawings of the steps."""
    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    playing = play(task, config)
    print(f"task {playing.task.id}: {printable(playing.task.instruction)}", flush=True)
    began = shown = time.monotonic()
    try:
        for step in playing:
            now = time.monotonic()
            print(_describe(step, now - shown), flush=True)
            shown = now
            if save is not None:
                step.drawing.save(save / f"step-{step.number:03d}.png")
    except ArpoFault as fault:
        place = f" ({fault.place})" if fault.place else ""
        raise UserError(f"task {playing.task.id}, {fault}{place}") from fault
    print(_describe_result(playing.episode, playing.task, playing.config))
    seconds = time.monotonic() - began
    print(f"{count_noun(len(playing.episode.steps), 'step')} in {seconds:.1f} s")
    if save is not None:
        playing.episode.screen_at_end.save(save / "end.png")
        print(f"screenshots: {save}")
    return 0


def _describe(step: Step, seconds: float) -> str:
    """The thought with number and time; below it one line per action, or the reason why there is none."""
    calls = [render([action]).removeprefix("Action: ") for action in step.actions]
    lines = calls or [f"not an action: {step.error}", *step.answer.splitlines()]
    first = f"{step.number:3d}  {seconds:5.1f} s  {step.thought}".rstrip()
    return printable("\n".join([first, *(f"{'':14}{line}" for line in lines)]))


def _describe_result(episode: Episode, task: Task, config: Config) -> str:
    reason, detail = describe_end(
        episode.outcome,
        solved=episode.score >= config.replay.threshold,
        infeasible=task.evaluator.get("func") == "infeasible",
        limits=config.rollout,
    )
    return printable(f"score {episode.score:g}: {reason}" + (f" ({detail})" if detail else ""))
