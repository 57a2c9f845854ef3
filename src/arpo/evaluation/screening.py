"""The task filter (`arpo screen`): plays each task several times and keeps the sometimes-solved ones.

The task file OUT lists the kept tasks with their counts. OUT.report.json has the result of every task, and a
later call with the same settings takes the counts from it: another selection plays nothing. OUT.episodes has
the finished episodes, so an interrupted screening plays only the missing ones. A task whose episodes all
failed counts as failed, not as unsolved.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from arpo.config import Config
from arpo.engines.factory import model_id
from arpo.errors import UserError
from arpo.evaluation.evaluate import delete_kept, evaluate_resumably, play_resumably, require_writable
from arpo.evaluation.finished_episodes import FinishedEpisodes
from arpo.evaluation.scoring import describe_failures
from arpo.models.hub import pin_model
from arpo.reporting.display import Display, describe_failure, open_display
from arpo.rollout.player import prompt_of
from arpo.rollout.scheduler import Scheduler
from arpo.storage.files import parse_json, write_atomically
from arpo.storage.from_json import from_json
from arpo.tasks.lists import is_shipped
from arpo.tasks.screened import Count, Screening, format_selection
from arpo.tasks.sets import SKIPPED, playable, refuse_desk_tasks, write_skipped
from arpo.tasks.sources import chosen_tasks
from arpo.types import Group, Task

SCREEN = "screen"  # first part of the episode ids


def run_screening(
    config: Config, tasks: str, rollouts: int, out: Path, *, drop_always: bool = False, count: int = 0
) -> int:
    """`arpo screen`: count the successes of every task, and write the kept tasks and the report."""
    refuse_desk_tasks(config.env, {"train": tasks})
    pool = {task.id: task for task in chosen_tasks(tasks, config)}
    _, skipped = playable(config, {"named": tuple(pool.values())})
    skipped |= {name: "it has no evaluator" for name, task in pool.items() if not task.has_evaluator}
    require_writable(out)
    config = pin_model(config)
    report = out.with_name(f"{out.name}.report.json")
    settings = screening_settings(config, rollouts)
    display = open_display(sys.stdout)
    try:
        counts = _read_report(report, settings, pool, display)
        write_skipped(out.with_name(f"{out.name}.{SKIPPED}"), skipped, display)
        done = counts.keys() | skipped.keys()
        left = [(index, task) for index, task in enumerate(pool.values()) if task.id not in done]
        groups = _play(config, tuple(pool.values()), left, rollouts, out, display) if left else []
        screening = Screening(
            tasks=list(pool),
            settings={"source": tasks} | settings,
            counts=counts | _counts(groups, config.replay.threshold),
            failed={one.task_id: describe_failure(one.failures[0]) for one in groups if not one.trajectories},
            skipped=skipped,
            drop_always=drop_always,
            count=count,
        )
        write_atomically(report, json.dumps(screening.report(), indent=1, ensure_ascii=False) + "\n")
        delete_kept(out)
        for line in screening.describe():
            display.note(line)
        display.note(f"result of each task: {report}")
    finally:
        display.close()
    _refuse_nothing(screening, tasks, config.env.name)
    folder, examples = out.resolve().parent, config.tasks.examples
    source = tasks if is_shipped(tasks) else os.path.relpath(tasks, folder)
    write_atomically(
        out, format_selection(source, screening.kept, examples and os.path.relpath(examples, folder))
    )
    print(f"written to {out}")
    return 0


def _play(
    config: Config,
    pool: Sequence[Task],
    left: Sequence[tuple[int, Task]],
    rollouts: int,
    out: Path,
    display: Display,
) -> list[Group]:
    """Play the tasks that are left, given with their index in `pool`: it names their episodes."""
    temperature = config.rollout.temperature
    as_training = replace(config, eval=replace(config.eval, temperature=temperature))

    async def play(scheduler: Scheduler, kept: FinishedEpisodes | None) -> list[Group]:
        return await evaluate_resumably(
            scheduler,
            left,
            name=SCREEN,
            shown="screening",
            rollouts=rollouts,
            temperature=temperature,
            display=display,
            kept=kept,
        )

    groups = play_resumably(as_training, {SCREEN: pool}, out, display, play)
    if failures := describe_failures(groups):
        display.note(failures)
    return groups


def _counts(groups: Sequence[Group], threshold: float) -> dict[str, Count]:
    """Successes by task. Failed episodes do not count as rollouts."""
    return {
        group.task_id: Count(
            successes=sum(episode.score >= threshold for episode in group.trajectories),
            rollouts=len(group.trajectories),
        )
        for group in groups
        if group.trajectories
    }


def _refuse_nothing(screening: Screening, tasks: str, env: str) -> None:
    if not screening.counts:
        first = next(iter(screening.failed.values()), "")
        reason = f" First failure: {first}." if first else ""
        raise UserError(f"{tasks}: no task could be run in {env}.{reason} Try `arpo check-env`")
    if not any(count.successes for count in screening.counts.values()):
        rollouts = screening.settings["of"]
        raise UserError(f"{tasks}: no task was solved in {rollouts} rollouts. Screen with a better model")
    if not screening.kept:
        option = "--count" if screening.count else "--drop-always"
        raise UserError(f"{tasks}: each task was solved always or never. Leave out {option}")
    if (found := len(screening.kept)) < screening.count:
        raise UserError(
            f"{tasks}: {found} of {len(screening.counts)} tasks were solved sometimes, but not always; "
            f"--count {screening.count} needs more. Screen more tasks, raise --rollouts "
            f"({screening.settings['of']}), or use --count {found}"
        )


def screening_settings(config: Config, rollouts: int) -> dict[str, str | int | float]:
    """The settings that two runs must share to continue one screening."""
    return {
        "of": rollouts,
        "model": model_id(config),
        "temperature": config.rollout.temperature,
        "max_steps": config.rollout.max_steps,
        "max_images": config.rollout.max_images,
        **({} if config.rollout.history == "auto" else {"history": config.rollout.history}),
        "max_answer_tokens": config.rollout.max_answer_tokens,
        "max_pixels": config.model.max_pixels,
        "prompt": prompt_of(config),
        "screen": f"{config.env.width}x{config.env.height}",
        "threshold": config.replay.threshold,
        "env": config.env.name,
        "seed": config.run.seed,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    terms: dict[str, Any]
    tasks: dict[str, Count]


def _read_report(
    path: Path, settings: Mapping[str, object], pool: Mapping[str, Task], display: Display
) -> dict[str, Count]:
    """The counts of a finished screening with the same settings; none if the report is missing or damaged."""
    try:
        report = from_json(parse_json(path.read_bytes()), _Report)
    except (FileNotFoundError, ValueError):
        return {}
    terms = report.terms
    others = [f"{key}: {terms.get(key)}" for key in settings if terms.get(key) != settings[key]]
    counts = {
        task: count
        for task, count in report.tasks.items()
        if task in pool and 0 <= count.successes <= count.rollouts > 0
    }
    if others:
        display.note(f"{path}: has other settings ({', '.join(others)}); all tasks are played")
        return {}
    if counts:
        display.note(f"{path}: has the counts of {len(counts)} tasks; they are not played again")
    return counts
