"""`arpo eval osworld`: plays a list of tasks and writes the results in OSWorld's folder layout.

Tasks with a result are not played again, so an interrupted evaluation resumes. Failed episodes are counted
separately and never scored. Tasks that cannot run here are skipped with a reason.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.engines.factory import model_id
from arpo.envs.osworld.runnable import split_runnable
from arpo.errors import UserError
from arpo.evaluation.osworld_results import SUMMARY, Played, TaskKey, Trial, model_folder, scores, task_key
from arpo.evaluation.osworld_summary import summarise, table
from arpo.interrupts import run_interruptibly
from arpo.models.hub import parse_hub_model, pin_model
from arpo.reporting.display import (
    Display,
    PartProgress,
    count_noun,
    describe_failure,
    note_cancel,
    open_display,
)
from arpo.rollout.activity import Activity, EpisodeCalls
from arpo.rollout.player import Player, open_dialect, open_player, prompt_of
from arpo.rollout.scheduler import Scheduler
from arpo.storage.run_folder import write_atomically
from arpo.tasks.lists import load_tasks, select_tasks
from arpo.types import Failure, Task, Trajectory

SECTIONS = ("run", "model", "tasks", "env", "osworld", "engine", "rollout", "eval", "server")


def run_osworld_evaluation(config: Config, source: str, results: str, names: Sequence[str]) -> int:
    """Play the tasks without a result, then write and print the summary. Returns 1 if an episode failed.

    Every trial, given by its name, plays each task of `source` once.
    """
    if config.engine.name == "auto":
        config = replace(config, engine=replace(config.engine, name="openai"))
    chosen = select_tasks(load_tasks(source, config.tasks.examples), config.tasks)
    tasks, skipped = split_runnable(chosen, config)
    if not tasks:
        raise UserError(f"{source}: none of its {len(chosen)} tasks can run here; the first: {skipped[0][1]}")
    config = pin_model(config)
    root, model = Path(results), _model_folder_name(config)
    arguments = {"source": source} | {name: asdict(getattr(config, name)) for name in SECTIONS}
    with ExitStack() as held:
        trials = [held.enter_context(Trial(root, model, name)) for name in dict.fromkeys(names)]
        for trial in trials:
            trial.begin(evaluation_settings(config), arguments)
        _play_missing(config, tasks, len(skipped), trials)
        folder = model_folder(root, model)
        summary = summarise(
            folder,
            config,
            evaluation_settings(config),
            source=source,
            names=[trial.name for trial in trials],
            keys={task_key(task) for task in tasks},
            skipped=skipped,
        )
        write_atomically(folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    print(*table(summary), f"results: {folder}", sep="\n")
    return 1 if summary["failures"] else 0


def _model_folder_name(config: Config) -> str:
    """The folder of the model's results: server.model, or the last part of model.path.

    runs/desk/model gives "desk": every run exports to a folder called "model".
    """
    if config.engine.name == "openai":
        return config.server.model
    path = Path(hub.repo if (hub := parse_hub_model(config.model.path)) else config.model.path).resolve()
    return path.parent.name if path.name == "model" else path.name


def evaluation_settings(config: Config) -> dict[str, Any]:
    """The settings that two episodes must share to belong to one evaluation."""
    osworld = config.env.name == "osworld"
    sampling = {
        "top_p": config.server.top_p,
        "frequency_penalty": config.server.frequency_penalty,
        "stop": "",  # results of earlier versions have it
    }
    return {
        "model": model_id(config),
        "prompt": prompt_of(config),
        "dialect": open_dialect(config).name,
        "temperature": config.eval.temperature,
        **(sampling if config.engine.name == "openai" else {}),
        "max_steps": config.rollout.max_steps,
        "max_images": config.rollout.max_images,
        **({} if config.rollout.history == "auto" else {"history": config.rollout.history}),
        "max_answer_tokens": config.rollout.max_answer_tokens,
        "env": f"osworld, {config.osworld.provider}" if osworld else config.env.name,
        "screen": f"{config.env.width}x{config.env.height}",
    }


def _play_missing(config: Config, tasks: Sequence[Task], skipped: int, trials: Sequence[Trial]) -> None:
    done = {trial.name: scores(trial.folder) for trial in trials}
    left = [(trial, task) for trial in trials for task in tasks if task_key(task) not in done[trial.name]]
    if not left:
        return
    if skipped:
        print(f"skipping {count_noun(skipped, 'task')} that cannot run here. The summary has the reasons")
    display = open_display(sys.stdout)
    try:
        progress = _Progress(display, tasks, done)
        with closing(open_player(config)) as player:
            run_interruptibly(_play(player, config, left, progress), on_cancel=lambda: note_cancel(display))
    finally:
        display.close()
    progress.refuse_if_nothing_was_played()


async def _play(
    player: Player, config: Config, left: Sequence[tuple[Trial, Task]], progress: _Progress
) -> None:
    """Play all episodes concurrently. A UserError ends the evaluation."""
    async with player.started(progress.display) as scheduler:
        settings = replace(config.rollout, temperature=config.eval.temperature)
        measuring = replace(scheduler, settings=settings)
        try:
            async with asyncio.TaskGroup() as running:
                for trial, task in left:
                    running.create_task(_episode(measuring, trial, task, progress))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None


async def _episode(scheduler: Scheduler, trial: Trial, task: Task, progress: _Progress) -> None:
    key = task_key(task)
    attempts: list[EpisodeCalls] = []
    activity = Activity()
    activity.report = attempts.append
    outcome = await replace(scheduler, activity=activity).episode(task, "/".join((trial.name, *key)))
    if isinstance(outcome, Trajectory):
        zero = time.time() - time.monotonic()
        calls = [began for name, began, _ in attempts[-1].calls if name != "engine"]
        times = tuple(datetime.fromtimestamp(zero + began) for began in calls)
        played = Played(trajectory=outcome, times=times, max_steps=scheduler.settings.max_steps)
        await asyncio.to_thread(trial.add, key, played)
    else:
        trial.add_failure(key, outcome)
    progress.ended(key, outcome)


class _Progress:
    """Shows the progress of each domain, and the first failure of each kind."""

    def __init__(
        self, display: Display, tasks: Sequence[Task], done: Mapping[str, Mapping[TaskKey, float]]
    ) -> None:
        self.display = display
        counts = Counter(task_key(task)[0] for task in tasks)
        self._domains = {
            name: PartProgress(name=name, total=count * len(done)) for name, count in counts.items()
        }
        self._failures: dict[tuple[str, str], Failure] = {}
        keys = {task_key(task) for task in tasks}
        for key, score in (pair for results in done.values() for pair in results.items()):
            if key in keys:
                self._domains[key[0]].add(score)
        total = sum(domain.total for domain in self._domains.values())
        display.begin("playing", total, self._ended)
        display.part_progress([*self._domains.values()])

    @property
    def _ended(self) -> int:
        return sum(domain.ended for domain in self._domains.values())

    def ended(self, key: TaskKey, outcome: Trajectory | Failure) -> None:
        self._domains[key[0]].add(outcome.score if isinstance(outcome, Trajectory) else None)
        if isinstance(outcome, Failure) and (kind := (outcome.where, outcome.kind)) not in self._failures:
            self._failures[kind] = outcome
            self.display.note(f"an episode failed: {describe_failure(outcome)}")
        self.display.episode_done()
        self.display.part_progress([*self._domains.values()])

    def refuse_if_nothing_was_played(self) -> None:
        """Raise UserError if every episode failed: there is nothing to summarise."""
        if self._failures and not any(domain.played for domain in self._domains.values()):
            first = next(iter(self._failures.values()))
            raise UserError(
                f"all {self._ended} episodes failed. First failure: {describe_failure(first)}. "
                "Fix it, then run the same command again"
            )
