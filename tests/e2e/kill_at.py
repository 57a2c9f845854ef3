"""Fault injection: runs `arpo` in a process, which sends itself signals at an exact moment.

The processes are forked from one that has imported torch: the import takes longer than a small run.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    ["arpo.training.trainer", "arpo.training.collect", "arpo.viewer.export", "tensorboardX"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int  # exit code; minus the signal's number if a signal ended the process
    output: str


def arpo(
    log: Path,
    *words: str,
    at: str = "",
    signals: Sequence[int] = (signal.SIGKILL,),
    file_bytes: int = 0,
    starts: Path | None = None,
) -> Ended:
    """Run a command. At the moment `at` (a key of MOMENTS) the process sends itself `signals`.

    The file `starts` gets one line per started environment of Desk: the task's id.

    With `file_bytes`, no file can become larger from that moment on, instead: a full disk that every machine
    has.
    """
    process = FORKS.Process(target=_command, args=(log, words, at, signals, file_bytes, starts))
    process.start()
    process.join()
    assert process.exitcode is not None
    return Ended(code=process.exitcode, output=log.read_text("utf-8"))


def _command(
    log: Path,
    words: Sequence[str],
    at: str,
    signals: Sequence[int],
    file_bytes: int,
    starts: Path | None,
) -> None:
    with log.open("w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    from arpo.cli.entry_point import main

    def strike() -> None:
        if file_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
            return
        for number in signals:
            os.kill(os.getpid(), number)

    if starts is not None:
        _record_starts(starts)
    if at:
        (MOMENTS | OTHER_MOMENTS)[at](strike)
    sys.exit(main(words))


Strike = Callable[[], None]


def _before(owner: Any, name: str, hook: Callable[..., object]) -> None:
    """Call `hook` with the arguments of each call of `owner.name`, before the call."""
    original = getattr(owner, name)

    def hooked(*args: Any, **named: Any) -> Any:
        hook(*args)
        return original(*args, **named)

    setattr(owner, name, hooked)


def _record_starts(path: Path) -> None:
    from arpo.envs.desk.env import DeskEnv

    def start(env: DeskEnv, task: Any) -> None:
        with path.open("a") as file:
            print(task.id, file=file)

    _before(DeskEnv, "start", start)


def _keeping(count: int, first: str) -> Callable[[Strike], None]:
    """When `count` episodes of an evaluation are stored, and the next one, `first…`, is not."""

    def install(strike: Strike) -> None:
        from arpo.evaluation.finished_episodes import FinishedEpisodes

        kept: list[str] = []

        def add(_: FinishedEpisodes, trajectory: Any) -> None:
            if trajectory.episode_id.startswith(first):
                kept.append(trajectory.episode_id)
                if len(kept) == count + 1:
                    strike()

        _before(FinishedEpisodes, "add", add)

    return install


def _playing(run: str) -> Callable[[Strike], None]:
    """Before the third environment step of the rollouts `run`, for example "batch-2"."""

    def install(strike: Strike) -> None:
        from arpo.envs.desk.env import DeskEnv
        from arpo.rollout.scheduler import Scheduler

        steps = {"seen": 0, "third": 0}

        def begins(scheduler: Scheduler, name: str, *rest: Any) -> None:
            if name != "group":  # of an asynchronous run: it may start at any moment
                steps["third"] = steps["seen"] + 3 if name == run else 0

        def step(*_: Any) -> None:
            steps["seen"] += 1
            if steps["seen"] == steps["third"]:
                strike()

        _before(Scheduler, "run", begins)
        _before(DeskEnv, "step", step)

    return install


def _in_a_group(strike: Strike) -> None:
    """Before the third environment step after the start of the sixth group of an asynchronous run."""
    from arpo.envs.desk.env import DeskEnv
    from arpo.rollout.scheduler import Scheduler

    steps = {"seen": 0, "third": 0}

    def begins(scheduler: Scheduler, name: str, tasks: Any, *rest: Any) -> None:
        if name == "group" and tasks[0][0] == 5:
            steps["third"] = steps["seen"] + 3

    def step(*_: Any) -> None:
        steps["seen"] += 1
        if steps["seen"] == steps["third"]:
            strike()

    _before(Scheduler, "run", begins)
    _before(DeskEnv, "step", step)


def _half_a_line(episode: str) -> Callable[[Strike], None]:
    """When half of the line of an episode is written."""

    def install(strike: Strike) -> None:
        from arpo.storage.run_folder import TRAJECTORIES, RunFolder

        def append(store: RunFolder, name: str, record: dict[str, Any]) -> None:
            if name == TRAJECTORIES and record["episode_id"] == episode:
                with (store.folder / name).open("ab") as file:
                    file.write(f'{{"episode_id":"{episode}","task_id":"po'.encode())
                strike()

        _before(RunFolder, "_append", append)

    return install


def _half_a_checkpoint(strike: Strike) -> None:
    """When the third checkpoint has its weights, but not its optimiser state."""
    from arpo.learner import local

    def save_tensors(tensors: Any, path: Path) -> None:
        if path.name == local.OPTIMISER_FILE and "step-000003" in str(path):
            strike()

    _before(local, "save_tensors", save_tensors)


def _before_the_rename(strike: Strike) -> None:
    """When the third checkpoint is complete, but not yet renamed to its final path."""
    from arpo.storage import checkpoint

    _before(checkpoint.os, "rename", lambda old, new: strike() if new.name == "step-000003" else None)


def _before_the_checkpoint(strike: Strike) -> None:
    """When the third batch is stored, and its checkpoint not begun."""
    from arpo.storage import checkpoint

    _before(checkpoint, "save", lambda root, step, *_: strike() if step == 3 else None)


def _after_the_learning(strike: Strike) -> None:
    """When the weights of the second batch are in memory and its episodes are stored."""
    from arpo.training.trainer import Trainer

    _before(Trainer, "_end_batch", lambda trainer, *_: strike() if trainer.run.progress.batch == 1 else None)


def _after_an_update(strike: Strike) -> None:
    """When the weights of the second offline update are in memory."""
    from arpo.training.offline import OfflineTrainer

    def finishes(trainer: OfflineTrainer, *_: Any) -> None:
        if trainer.run.progress.batch == 1:
            strike()

    _before(OfflineTrainer, "_end_update", finishes)


def _half_an_episode(strike: Strike) -> None:
    """When the screenshots of the fifth episode and half of its line are written."""
    from arpo.storage.run_folder import TRAJECTORIES, RunFolder

    def append(store: RunFolder, name: str, record: dict[str, Any]) -> None:
        if name == TRAJECTORIES and len(store.episode_ids()) == 4:
            with (store.folder / name).open("ab") as file:
                file.write(b'{"episode_id":"collect-')
            strike()

    _before(RunFolder, "_append", append)


def _at_the_end(strike: Strike) -> None:
    """When the last checkpoint and the summary are written, and the model is not."""
    from arpo.training import trainer

    _before(trainer, "export_model", lambda *_: strike())


def _while_loading(strike: Strike) -> None:
    from arpo.models import loading

    _before(loading, "load_model", lambda *_: strike())


MOMENTS: dict[str, Callable[[Strike], None]] = {
    "in the base evaluation": _playing("eval0-heldout"),
    "in a rollout": _playing("batch-2"),
    "in an evaluation": _playing("eval2-train"),
    "in the final evaluation": _playing("eval4-heldout"),
    "after the learning": _after_the_learning,
    "in a line of the store": _half_a_line("batch-3-1-0"),
    "before the checkpoint": _before_the_checkpoint,
    "in the checkpoint": _half_a_checkpoint,
    "before the checkpoint's rename": _before_the_rename,
    "at the end": _at_the_end,
}
OTHER_MOMENTS: dict[str, Callable[[Strike], None]] = {
    "in a group": _in_a_group,
    "in a line of a group": _half_a_line("group-10-0"),
    "in the loading of the model": _while_loading,
    "in eval": _playing("eval-train"),
    "after 5 episodes of eval": _keeping(5, "eval-"),
    "after 3 episodes of the base evaluation": _keeping(3, "eval0-"),
    "after 2 episodes of an evaluation": _keeping(2, "eval2-"),
    "after 3 episodes of the final evaluation": _keeping(3, "eval4-"),
    "after an update": _after_an_update,
    "in a line of a collection": _half_an_episode,
}
