"""`arpo play`: plays one task with a model, and prints each step while it happens."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from arpo.actions import render
from arpo.api import Episode, Step, play
from arpo.cli.command import RECIPE_HELP, Command, argument
from arpo.config import Config
from arpo.config.recipe import load_config
from arpo.errors import ArpoFault, UserError, printable
from arpo.types import Task


def run_play(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    config, save = load_config(options.recipe, overrides), options.save
    from arpo.reporting.display import count_noun

    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    playing = play(options.task, config)
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
    from arpo.viewer.pages.episode import describe_end

    reason, detail = describe_end(
        episode.outcome,
        solved=episode.score >= config.replay.threshold,
        infeasible=task.evaluator.get("func") == "infeasible",
        limits=config.rollout,
    )
    return printable(f"score {episode.score:g}: {reason}" + (f" ({detail})" if detail else ""))


COMMAND = Command(
    name="play",
    run=run_play,
    purpose="play one task with a model, and print each step",
    lesson="""\
TASK is the id of a training or held-out task of the recipe, or random. Prints the time, the thought and the
actions of each step, and the score. The same task, model and run.seed give the same episode.""",
    example="""\
arpo play random
arpo play pool-023 --model.path runs/desk/model --save steps""",
    arguments=(
        argument("task", "task id, or random", metavar="TASK"),
        argument("--recipe", f"{RECIPE_HELP} (default: %(default)s)", default="desk", metavar="RECIPE"),
        argument("--save", "folder for screenshots with the actions drawn", type=Path, metavar="FOLDER"),
    ),
    settings=True,
)
