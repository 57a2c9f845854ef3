"""`arpo play`: plays one task with a model, and prints each step while it happens."""

from __future__ import annotations

import argparse
import shlex
import threading
import time
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from arpo.actions import render
from arpo.api import Episode, Play, Step, open_run, play
from arpo.cli.command import RECIPE_HELP, Command, argument
from arpo.cli.view_command import redirect
from arpo.config import Config
from arpo.config.recipe import load_config, nearest
from arpo.errors import ArpoFault, NoSuchTask, UserError, printable
from arpo.storage.codec import PLAYED
from arpo.types import StopReason, Task, Trajectory

if TYPE_CHECKING:
    from arpo.storage.played_folder import PlayedFolder

_MODEL = "--model.path"
_NAME = "episode"  # of the temporary folder of --watch, as the viewer shows it


def run_play(options: argparse.Namespace, overrides: Sequence[str]) -> int:
    if options.run and options.recipe:
        raise UserError("--recipe: the run has its own recipe: remove --recipe, or --run")
    if options.task is None:
        if not options.run:
            raise UserError("TASK: is missing: give the id of a task, or random (see: arpo play --help)")
        return _list_tasks(options.run)
    playing = _open(options, overrides)
    print(f"task {playing.task.id}: {printable(playing.task.instruction)}", flush=True)
    try:
        with ExitStack() as opened:
            _play(playing, options, opened)
    except KeyboardInterrupt:
        if not options.watch:
            raise
        print("ended", flush=True)
    return 0


def _open(options: argparse.Namespace, overrides: Sequence[str]) -> Play:
    if not options.run:
        return play(options.task, load_config(options.recipe or "desk", overrides))
    run = open_run(options.run)
    chosen = any(word.partition("=")[0] == _MODEL for word in overrides)
    config = load_config(run.config, overrides) if chosen else run.measured_config(overrides)
    try:
        return play(options.task, config)
    except NoSuchTask:
        names = [row["task"] for row in played_tasks(options.run)]
        raise UserError(
            f"{options.task!r}: no such task in the run{nearest(options.task, names)}. "
            f"`arpo play --run {shlex.quote(str(options.run))}` lists its {len(names)} tasks"
        ) from None


def _play(playing: Play, options: argparse.Namespace, opened: ExitStack) -> None:
    """Play the episode, print its steps, and write what the options ask for."""
    from arpo.reporting.display import count_noun

    store = _open_folder(playing, options, opened)
    began = shown = time.monotonic()
    steps: list[Step] = []
    try:
        for step in playing:
            now = time.monotonic()
            print(_describe(step, now - shown), flush=True)
            shown = now
            steps.append(step)
            if options.save is not None:
                step.drawing.save(options.save / f"step-{step.number:03d}.png")
            if store is not None:
                store.write(_unfinished(playing.task, steps))
            if store is not None and options.watch and step.number == 1:
                opened.enter_context(_watching(store.folder))
    except ArpoFault as fault:
        place = f" ({fault.place})" if fault.place else ""
        raise UserError(f"task {playing.task.id}, {fault}{place}") from fault
    result = _describe_result(playing.episode, playing.task, playing.config)
    print(result)
    print(f"{count_noun(len(steps), 'step')} in {time.monotonic() - began:.1f} s", flush=True)
    if store is not None:
        store.finish(playing.episode.trajectory)
    if options.save is not None:
        playing.episode.screen_at_end.save(options.save / "end.png")
        print(f"screenshots: {options.save}; `arpo view {shlex.quote(str(options.save))}` shows the episode")
    if options.gif is not None:
        _write_gif(options.gif, playing, result)
        print(f"animation: {options.gif}")
    if options.watch:
        print("Ctrl-C ends the viewer", flush=True)
        threading.Event().wait()


def _open_folder(playing: Play, options: argparse.Namespace, opened: ExitStack) -> PlayedFolder | None:
    """The folder of the episode: that of --save, or a temporary one for --watch. None without both."""
    if options.save is None and not options.watch:
        return None
    from arpo.storage.played_folder import PlayedFolder

    folder = options.save
    if folder is None:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="arpo-play-"))) / _NAME
    return opened.enter_context(closing(PlayedFolder(folder, playing.config)))


@contextmanager
def _watching(folder: Path) -> Iterator[None]:
    """The live episode in the browser during the block."""
    from arpo.viewer.live import live_view
    from arpo.viewer.source import encode_part

    at = f"/s/{encode_part(folder.resolve().name)}/episode/{PLAYED}?step=end"
    with live_view(folder, lambda text: print(text, flush=True), at) as address:
        if not address:
            yield
            return
        with redirect(address) as file:
            threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
            yield


def _unfinished(task: Task, steps: Sequence[Step]) -> Trajectory:
    """The steps so far as an episode. The viewer shows no score and no end of it: there is no summary."""
    turns = tuple(step.turn for step in steps)
    return Trajectory(
        episode_id=PLAYED,
        task_id=task.id,
        turns=turns,
        final=turns[-1].screenshot,
        score=0.0,
        malformed=False,
        stop=StopReason.MAX_STEPS,
    )


def _write_gif(path: Path, playing: Play, result: str) -> None:
    from arpo.viewer.animation import MAX_STEPS, Frame, animate, step_frame

    frames = [
        step_frame(step.number, step.screenshot, step.actions, step.thought, "\n".join(_calls(step)))
        for step in playing.episode.steps[:MAX_STEPS]
    ]
    end = Frame(screen=playing.episode.screen_at_end, lines=(result,))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(animate(playing.task.instruction, [*frames, end]))


def played_tasks(folder: Path) -> list[dict[str, Any]]:
    """The tasks that a run has played, as the viewer's page of tasks has them."""
    from arpo.viewer.export import index_all
    from arpo.viewer.library import Library
    from arpo.viewer.pages.tasks import tasks_page

    open_run(folder)  # raises UserError if it is none
    with closing(Library([folder])) as library:
        index_all(library)
        found = [row for source in library.sources.values() for row in tasks_page(source)["tasks"]]
    return sorted(found, key=lambda row: (row["task_set"] or "", row["task"]))


def _list_tasks(folder: Path) -> int:
    """Print the tasks that a run has played, with their success rates before and after training."""
    from arpo.reporting.display import count_noun

    rows = played_tasks(folder)
    width = max((len(row["task"]) for row in rows), default=4)
    print(f"{'task':{width}}  {'before':>6} {'after':>6}  set, instruction")
    for row in rows:
        rates = " ".join(f"{_percent(row[name]):>6}" for name in ("before", "after"))
        about = ": ".join(filter(None, [row["task_set"] or "training", row["instruction"]]))
        print(printable(f"{row['task']:{width}}  {rates}  {about}"))
    run = shlex.quote(str(folder))
    print(f"{count_noun(len(rows), 'task')}. Play one: arpo play TASK --run {run}")
    return 0


def _percent(rate: Any) -> str:
    return "" if rate is None else f"{100 * rate:.0f}%"


def _describe(step: Step, seconds: float) -> str:
    """The thought with number and time; below it one line per action, or the reason why there is none."""
    first = f"{step.number:3d}  {seconds:5.1f} s  {step.thought}".rstrip()
    return printable("\n".join([first, *(f"{'':14}{line}" for line in _calls(step))]))


def _calls(step: Step) -> list[str]:
    calls = [render([action]).removeprefix("Action: ") for action in step.actions]
    return calls or [f"not an action: {step.error}", *step.answer.splitlines()]


def _describe_result(episode: Episode, task: Task, config: Config) -> str:
    from arpo.viewer.pages.episode import describe_end

    reason, detail = describe_end(
        episode.outcome,
        solved=episode.score >= config.replay.threshold if task.has_evaluator else None,
        infeasible=task.evaluator.get("func") == "infeasible",
        limits=config.rollout,
    )
    score = f"score {episode.score:g}" if task.has_evaluator else "no score (the task has no evaluator)"
    return printable(f"{score}: {reason}" + (f" ({detail})" if detail else ""))


COMMAND = Command(
    name="play",
    run=run_play,
    purpose="play one task with a model, and print each step",
    lesson="""\
TASK is the id of a training or held-out task of the recipe or the run, or random. Prints the time, the
thought and the actions of each step, and the score. The same task, model and run.seed give the same episode.
--run takes the recipe and the trained model of a run. Without TASK, it lists the run's tasks with their
success rates before and after training.
--watch shows the episode in the browser while it is played, until Ctrl-C. `arpo view FOLDER` opens what
--save wrote.""",
    example="""\
arpo play random --watch
arpo play --run runs/desk
arpo play pool-023 --run runs/desk --save steps --gif episode.gif""",
    arguments=(
        argument("task", "task id, or random", nargs="?", metavar="TASK"),
        argument("--run", "run folder: its recipe, tasks and trained model", type=Path, metavar="FOLDER"),
        argument("--recipe", f"{RECIPE_HELP} (default: desk)", metavar="RECIPE"),
        argument(
            "--save", "folder for the episode, and screenshots with its actions", type=Path, metavar="FOLDER"
        ),
        argument("--gif", "file for the episode as an animation", type=Path, metavar="FILE"),
        argument("--watch", "episode in the browser while it is played", action="store_true"),
    ),
    settings=True,
)
