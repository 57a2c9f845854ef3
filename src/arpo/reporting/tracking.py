"""Metric trackers: always metrics.jsonl in the run folder; optionally TensorBoard, W&B and a plug-in.

Training never reads from a tracker.
"""

from __future__ import annotations

import io
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from PIL import Image

from arpo.config import Config
from arpo.errors import UserError
from arpo.plugins import Plugin, Tracker, open_plugin
from arpo.storage.files import naming, write_atomically
from arpo.storage.run_folder import RunFolder
from arpo.types import Task, Trajectory

WANDB_ID = "wandb-id.txt"
WANDB_EPISODES = 4  # that each evaluation shows, per task set


class TensorBoardTracker:
    """Writes TensorBoard files. Hides entries from `next_step` on, logged before a resume.

    It writes in the caller's thread: a full disk raises OSError here. It would end the thread of
    SummaryWriter, and the next entries would wait for ever.
    """

    def __init__(self, folder: Path, next_step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # slow to import
        from tensorboardX.proto.event_pb2 import SessionLog

        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with naming(folder):
            self._writer = EventsWriter(str(folder / "events"))
        self._write(next_step, session_log=SessionLog(status=SessionLog.START))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in finite.items()]
        self._write(step, summary=Summary(value=values))

    def close(self) -> None:
        with naming(self._folder):
            self._writer.close()

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        with naming(self._folder):
            self._writer.write_event(Event(wall_time=time.time(), step=step, **content))
            self._writer.flush()


class WandbTracker:
    """Logs to W&B. The run folder stores the id of the W&B run, and a resumed run continues it.

    Each evaluation is a table "episodes/NAME": the first tasks of the set, one row per screenshot.
    """

    def __init__(self, folder: Path, config: Config) -> None:
        try:
            import wandb
        except ImportError:
            raise UserError(
                "store.wandb_project is set, but wandb is not installed: run pip install 'arpo[wandb]', "
                "or set --store.wandb_project ''"
            ) from None
        id_file = folder / WANDB_ID
        run_id = id_file.read_text("utf-8").strip() if id_file.is_file() else uuid4().hex[:8]
        write_atomically(id_file, run_id + "\n")
        store = config.store
        self._wandb = wandb
        try:
            self._run = wandb.init(
                project=store.wandb_project,
                name=os.environ.get("WANDB_NAME") or config.run.dir,
                id=run_id,
                resume="allow",
                dir=str(folder),
                config=asdict(config),
            )
        except wandb.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise UserError(
                f"store.wandb_project = {store.wandb_project!r}: W&B refuses the run: {reason}. Log in with "
                "`wandb login`, or set WANDB_MODE=offline in the process environment"
            ) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def log_episodes(self, step: int, name: str, played: Sequence[tuple[Task, Trajectory]]) -> None:
        if not played:
            return
        table = self._wandb.Table(columns=["task", "instruction", "score", "step", "screenshot", "answer"])
        for task, trajectory in played[:WANDB_EPISODES]:
            answers = [turn.completion.text for turn in trajectory.turns]
            shots = [turn.screenshot for turn in trajectory.turns]
            steps = zip([*shots, trajectory.final], [*answers, f"(end: {trajectory.stop})"], strict=True)
            for number, (shot, answer) in enumerate(steps):
                image = self._wandb.Image(Image.open(io.BytesIO(shot.png)))
                table.add_data(task.id, task.instruction, trajectory.score, number, image, answer)
        self._run.log({f"episodes/{name}": table}, step=step)

    def close(self) -> None:
        self._run.finish()


class PluginTracker:
    """A tracker of the user. Its faults are those of the plug-in."""

    def __init__(self, plugin: Plugin, config: Config) -> None:
        self._plugin = plugin
        self._tracker = plugin(config)
        missing = [name for name in ("log", "close") if not callable(getattr(self._tracker, name, None))]
        if missing:
            kind = type(self._tracker).__name__
            raise plugin.error(f"made a {kind} without the methods {', '.join(missing)}: add them")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._plugin.call(self._tracker.log, step, dict(metrics))

    def close(self) -> None:
        self._plugin.call(self._tracker.close)


class Trackers:
    """metrics.jsonl of the run folder, and other trackers. Does not close the run folder."""

    def __init__(self, run_folder: RunFolder, others: Sequence[Tracker]) -> None:
        self._run_folder, self._others = run_folder, tuple(others)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run_folder.log_metrics(step, metrics)
        for tracker in self._others:
            tracker.log(step, metrics)

    def log_episodes(self, step: int, name: str, played: Sequence[tuple[Task, Trajectory]]) -> None:
        """Show evaluation episodes. `name` is the task set, for example "heldout"."""
        for tracker in self._others:
            if isinstance(tracker, WandbTracker):
                tracker.log_episodes(step, name, played)

    def close(self) -> None:
        for tracker in self._others:
            tracker.close()


def open_trackers(config: Config, run_folder: RunFolder, next_step: int) -> Trackers:
    """Open the trackers in `config.store` and the plug-in. `next_step` is the first step to log."""
    others: list[Tracker] = []
    if config.store.tensorboard:
        others.append(TensorBoardTracker(run_folder.folder / "tensorboard", next_step))
    if config.store.wandb_project:
        others.append(WandbTracker(run_folder.folder, config))
    if plugin := open_plugin(config.plugins, "tracker"):
        others.append(PluginTracker(plugin, config))
    return Trackers(run_folder, others)
