"""The Python interface: load a recipe, train, evaluate, read episodes, and watch a model play a task.

    import arpo

    config = arpo.load("desk", {"train.epochs": 1, "run.dir": "runs/mine"})
    run = arpo.train(config)
    print(run.before["train"].rate, run.after["train"].rate)
    for step in arpo.play("pool-023", config, model=run.model):
        print(step.thought, step.actions)

All functions work in scripts and in Jupyter. A mistake raises UserError; a fault of an environment or an
engine raises ArpoFault. The functions print nothing: notes, such as the reason of failed episodes, go to the
logger "arpo". `display=True` shows the progress as the commands do. Importing this module imports no torch.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from arpo.actions import Action
from arpo.config import Config
from arpo.config.recipe import load_config, load_recorded, nearest
from arpo.dialects.base import thought_of
from arpo.errors import AgentError, EngineError, EnvError, NoSuchTask, UserError
from arpo.interrupts import INTERRUPTED
from arpo.types import Failure, StopReason, Task, Trajectory, Turn

if TYPE_CHECKING:
    from PIL.Image import Image

    from arpo.evaluation.scoring import Score
    from arpo.reporting.display import Display
    from arpo.rollout.player import Player
    from arpo.storage.codec import StoredEpisode
    from arpo.storage.run_folder import RunFolderReader

Setting = bool | int | float | str | os.PathLike[str]
Recipe = Config | str | os.PathLike[str]
RANDOM = "random"  # the task of `play`

# Set before torch is imported: on shared cores, spinning OpenMP threads slow torch down.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def load(recipe: Recipe = "desk", settings: Mapping[str, Setting] | None = None) -> Config:
    """The config of a recipe: a TOML file, a shipped recipe or another Config. `settings` change its keys.

    >>> config = load("desk", {"train.epochs": 1, "replay.enabled": False})
    >>> longer = load(config, {"train.epochs": 2})
    """
    start = recipe if isinstance(recipe, Config) else os.fspath(recipe)
    changes = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value
        for key, value in (settings or {}).items()
    }
    return load_config(start, changes)


def train(config: Recipe, *, display: bool = False) -> StoredRun:
    """Train, or resume the run in run.dir, as `arpo train` does. Also writes report.html.

    The first Ctrl-C finishes the batch, saves a checkpoint and raises KeyboardInterrupt.
    """
    config = load(config)
    from arpo.training.trainer import run_training
    from arpo.viewer.export import write_report

    if run_training(config, _open_display(display)) == INTERRUPTED:
        raise KeyboardInterrupt(f"the run in {config.run.dir} is saved: train again to resume")
    write_report(Path(config.run.dir))
    return open_run(config.run.dir)


def evaluate(
    config: Recipe,
    *,
    model: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] | None = None,
    display: bool = False,
) -> dict[str, Score]:
    """The scores of a model by task set, as `arpo eval` measures them: train, and each held-out set.

    `model` is a model folder or a model of the hub; None: model.path of the recipe. `out` is a file for the
    scores as JSON. With it, the same call resumes an interrupted evaluation: finished episodes are stored.

    >>> evaluate("desk", model="runs/desk/model", out="scores.json")["train"].rate
    """
    config = _with_model(load(config), model)
    from arpo.evaluation.evaluate import measure

    return measure(config, _open_display(display), None if out is None else Path(out))


def play(
    task: str | Task = RANDOM, config: Recipe = "desk", *, model: str | os.PathLike[str] | None = None
) -> Play:
    """Play one task with a model. Iterate over the result to watch each step while it happens.

    `task` is the id of a task of the recipe, "random", or a Task. The temperature is eval.temperature. The
    same task, model and run.seed give the same episode.

    >>> playing = play("pool-023")
    >>> for step in playing:
    ...     print(step.thought, step.actions)
    >>> playing.episode.score
    """
    settings = {"env.partial": 0.0, "env.attempts": 1}  # scores as in evaluations; a fault ends the episode
    config = load(_with_model(load(config), model), settings)
    found = find_task(task, config)
    from arpo.rollout.player import open_player

    return Play(found, config, open_player(config))


def open_run(folder: str | os.PathLike[str]) -> StoredRun:
    """The run in a folder, also while another process trains it."""
    return StoredRun(Path(folder))


def find_task(task: str | Task, config: Config) -> Task:
    """A task of the recipe's task sets that can run on this machine; "random" chooses one.

    Of tasks made on demand, it is a training task.
    """
    from arpo.envs.desk.fresh import FreshTasks
    from arpo.envs.osworld.runnable import split_runnable
    from arpo.tasks.sets import load_sets
    from arpo.tasks.sources import TaskIndex

    if isinstance(task, Task):
        found: Sequence[Task] = [task]
    else:
        sets = load_sets(config)
        index = TaskIndex(*sets.values())
        if task not in index and task != RANDOM:
            names = [one.id for one in index.listed] or [sets["train"][0].id]
            some = f" (there are {len(names)}: {', '.join(names[:3])}, …)"
            raise NoSuchTask(f"{task!r}: no such task in the recipe{nearest(task, names) or some}")
        if task != RANDOM:
            found = [index[task]]
        elif isinstance(sets["train"], FreshTasks):
            found = [random.choice(sets["train"])]
        else:
            found = index.listed
    runnable, others = split_runnable(found, config)
    if not runnable:
        raise UserError(f"task {others[0][0].id}: cannot run here: {others[0][1]}")
    return random.choice(runnable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One answer of the model to one screenshot. `number` counts from 1."""

    number: int
    turn: Turn  # with tokens and log-probabilities

    @property
    def screenshot(self) -> Image:
        """The screen before the actions."""
        from arpo.png import rgb

        return rgb(self.turn.screenshot).copy()

    @property
    def drawing(self) -> Image:
        """The screenshot with the actions drawn on it, enlarged if it is small."""
        from arpo.viewer.drawing import draw_turn

        return draw_turn(self.turn)

    @property
    def answer(self) -> str:
        """The whole text of the model."""
        return self.turn.completion.text

    @property
    def thought(self) -> str:
        return thought_of(self.answer)

    @property
    def actions(self) -> tuple[Action, ...]:
        """Empty if the answer did not parse."""
        return self.turn.actions

    @property
    def error(self) -> str:
        """The reason why the answer did not parse; "" if it did."""
        return self.turn.error


class Episode:
    """One played episode. The steps of a stored one are read when you ask for them."""

    def __init__(self, outcome: StoredEpisode, load: Callable[[], Trajectory]) -> None:
        self.outcome = outcome
        self._load = load

    def __repr__(self) -> str:
        return f"Episode({self.id!r}, task={self.task!r}, score={self.score:g}, stop={self.stop.value!r})"

    @property
    def id(self) -> str:
        """For example "batch-4-0-1" (training) or "eval0-train-0-0" (evaluation before training)."""
        return self.outcome.episode_id

    @property
    def task(self) -> str:
        return self.outcome.task_id

    @property
    def score(self) -> float:
        """The result of the task's checker, from 0 to 1."""
        return self.outcome.score

    @property
    def stop(self) -> StopReason:
        """The reason why it ended."""
        return self.outcome.stop

    @cached_property
    def trajectory(self) -> Trajectory:
        return self._load()

    @property
    def screen_at_end(self) -> Image:
        """The last screenshot, after all steps."""
        from arpo.png import rgb

        return rgb(self.trajectory.final).copy()

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(Step(number=number, turn=turn) for number, turn in enumerate(self.trajectory.turns, 1))


class StoredRun:
    """A run folder. Every property reads the files again, so it shows the progress of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = self._open()

    def __repr__(self) -> str:
        return f"StoredRun({str(self.folder)!r})"

    @property
    def config(self) -> Config:
        from arpo.storage.run_folder import RECIPE

        return load_recorded(self.folder / RECIPE)[0]

    @property
    def model(self) -> Path:
        """The folder of the trained model. Raises UserError until the run has ended."""
        from arpo.training.trainer import MODEL

        if not (self.folder / MODEL).is_dir():
            raise UserError(f"{self.folder}: has no model yet: train to the end, or use `arpo export`")
        return self.folder / MODEL

    def measured_config(self, settings: Sequence[str] | Mapping[str, Setting] = ()) -> Config:
        """The recipe of the run with its trained model, for `evaluate`. `settings` change keys."""
        return load_config(load(self.config, {"model.path": self.model}), settings)

    @property
    def metrics(self) -> list[dict[str, float | None]]:
        """One dict per batch, with its number as "step"; step 0 is the evaluation before training."""
        from arpo.storage.run_folder import METRICS

        return list(self._reader.read_log(METRICS))

    @property
    def before(self) -> dict[str, Score]:
        """The scores of the base model by task set."""
        return self._scores("base")

    @property
    def after(self) -> dict[str, Score]:
        """The scores of the trained model by task set. Raises UserError until the run has ended."""
        return self._scores("final")

    @property
    def failures(self) -> list[Failure]:
        """The episodes with a fault."""
        return list(self._reader.failures())

    def episodes(self, task: str | None = None) -> Iterator[Episode]:
        """The stored episodes in the order of the run: all of training, one per task of each evaluation."""
        self._reader = reader = self._open()
        tasks: set[str] = set()
        for outcome in reader.episodes():
            tasks.add(outcome.task_id)
            if task in (None, outcome.task_id):
                yield Episode(outcome, partial(_load_stored, reader, outcome))
        if task is not None and task not in tasks:
            raise UserError(f"{self.folder}: has no episode of task {task!r}{nearest(task, sorted(tasks))}")

    def _open(self) -> RunFolderReader:
        from arpo.storage.run_folder import RunFolderReader

        reader = RunFolderReader(self.folder)
        reader.close_after_last_use()  # by this run or by one of its episodes
        return reader

    def _scores(self, landmark: str) -> dict[str, Score]:
        from arpo.evaluation.scoring import over_same_tasks, read_scores
        from arpo.storage.run_folder import EVALUATIONS

        found = {one["landmark"]: read_scores(one) for one in self._reader.read_log(EVALUATIONS)}
        if landmark not in found:
            raise UserError(f"{self.folder}: has no {landmark} evaluation yet: train to the end")
        if {"base", "final"} <= found.keys():
            found["base"], found["final"] = over_same_tasks(found["base"], found["final"])
        return found[landmark]


class Play:
    """An episode while it is played: `for step in playing`. `episode` is the result."""

    def __init__(self, task: Task, config: Config, player: Player) -> None:
        self.task, self.config = task, config
        self._player = player
        self._episode: Episode | None = None

    def __iter__(self) -> Iterator[Step]:
        """The steps, each as soon as the model has answered. Ends the episode if the loop is left early."""
        if self._episode is not None:
            yield from self._episode.steps
            return
        turns: SimpleQueue[Turn | None] = SimpleQueue()
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        loop = runner.get_loop()
        playing = loop.create_task(self._play(turns.put))

        def work() -> Episode:
            with runner:
                return loop.run_until_complete(playing)

        with ThreadPoolExecutor(1) as threads:
            result = threads.submit(work)
            result.add_done_callback(lambda _: turns.put(None))
            try:
                for number, turn in enumerate(iter(turns.get, None), 1):
                    yield Step(number=number, turn=turn)
                self._episode = result.result()
                self._player.close()
            finally:
                with suppress(RuntimeError):  # the loop is closed if the episode has ended
                    loop.call_soon_threadsafe(playing.cancel)

    @property
    def episode(self) -> Episode:
        """The episode with its score. Plays to the end first, if nobody has watched it."""
        if self._episode is None:
            for _ in self:
                pass
        assert self._episode is not None
        return self._episode

    async def _play(self, on_turn: Callable[[Turn], None]) -> Episode:
        from arpo.storage.codec import PLAYED, stored_episode, trajectory_to_json

        async with self._player.started(_open_display(False)) as scheduler:
            settings = replace(scheduler.settings, temperature=self.config.eval.temperature)
            outcome = await replace(scheduler, settings=settings).episode(self.task, PLAYED, on_turn=on_turn)
        if isinstance(outcome, Failure):
            faults = {"generate": EngineError, "release": EngineError, "agent": AgentError}
            raise faults.get(outcome.where, EnvError)(outcome.where, outcome.message, outcome.place)
        return Episode(stored_episode(trajectory_to_json(outcome)), lambda: outcome)


def _load_stored(reader: RunFolderReader, outcome: StoredEpisode) -> Trajectory:
    if not reader.has_screenshots(outcome):
        raise UserError(
            f"{reader.folder}: the screenshots of episode {outcome.episode_id} were deleted "
            "(store.prune_every); its outcome is still there"
        )
    return reader.load_trajectory(outcome.episode_id)


def _with_model(config: Config, model: str | os.PathLike[str] | None) -> Config:
    return config if model is None else load(config, {"model.path": model})


def _open_display(shown: bool) -> Display:
    from arpo.reporting.display import LogDisplay, open_display

    return open_display(sys.stdout) if shown else LogDisplay()
