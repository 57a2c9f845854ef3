"""How good a policy is: rollouts of given tasks, counted. Failures are counted apart, never as zero."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from arpo.assembly import assemble
from arpo.config import Config
from arpo.display import Display, open_display
from arpo.envs.pool import Quarantined
from arpo.errors import UserError
from arpo.scheduler import Outcome, Scheduler
from arpo.store import write_atomically
from arpo.tasks import check_disjoint, load_tasks
from arpo.types import Failure, Group, Task

SETS = ("train", "heldout")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The verdicts of one evaluation, by task; `failures` could not be carried out."""

    by_task: Mapping[str, tuple[float, ...]]
    failures: int

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Score:
        return cls(
            by_task={group.task_id: tuple(t.score for t in group.trajectories) for group in groups},
            failures=sum(len(group.failures) for group in groups),
        )

    @property
    def successes(self) -> float:
        return sum(sum(scores) for scores in self.by_task.values())

    @property
    def episodes(self) -> int:
        return sum(len(scores) for scores in self.by_task.values())

    @property
    def rate(self) -> float:
        """Not a number when no episode could be carried out."""
        return self.successes / self.episodes if self.episodes else math.nan


async def evaluate(
    scheduler: Scheduler,
    tasks: Sequence[tuple[int, Task]],
    *,
    name: str,
    rollouts: int,
    temperature: float,
    on_episode: Callable[[int, Outcome], None],
) -> list[Group]:
    """`rollouts` episodes of each (index, task) at `temperature`, named name-index-number."""
    settings = replace(scheduler.settings, group_size=rollouts, temperature=temperature)
    return await replace(scheduler, settings=settings).run(name, tasks, on_episode)


async def evaluate_sets(
    scheduler: Scheduler, config: Config, sets: Mapping[str, Sequence[Task]], name: str, display: Display
) -> dict[str, list[Group]]:
    """The training and the held-out tasks, each with its own number of rollouts."""
    rollouts = {"train": config.eval.rollouts, "heldout": config.eval.heldout_rollouts}
    groups = {}
    for which, tasks in sets.items():
        display.begin(f"evaluating, {which} tasks", len(tasks) * rollouts[which])
        groups[which] = await evaluate(
            scheduler,
            list(enumerate(tasks)),
            name=f"{name}-{which}",
            rollouts=rollouts[which],
            temperature=config.eval.temperature,
            on_episode=lambda *_: display.episode_done(),
        )
        score = Score.of(groups[which])
        display.evaluation(f"{name}, {which} tasks", score.successes, score.episodes)
        tell_failures(groups[which], display)
    return groups


def tell_failures(groups: Sequence[Group], display: Display) -> None:
    """How many episodes failed and why the first did: the person who can mend it is watching.

    Where nothing at all could be played there is nothing to learn or to measure, and going on would hide it.
    """
    failures = [failure for group in groups for failure in group.failures]
    if not failures:
        return
    told = f"{len(failures)} episodes failed, the first of them: {reason(failures[0])}"
    tried = any(failure.kind != Quarantined.__name__ for failure in failures)
    if tried and not any(group.trajectories for group in groups):
        raise UserError(f"all {told}; mend it (`arpo check-env` helps), then give the same command again")
    display.note(told)


def reason(failure: Failure) -> str:
    """task pool-001, step: RuntimeError: the screen went dark"""
    first_line = failure.message.partition("\n")[0]
    return f"task {failure.task_id}, {failure.where}: {first_line[:200]}"


def load_sets(config: Config) -> dict[str, tuple[Task, ...]]:
    sets = {"train": load_tasks(config.tasks.train), "heldout": load_tasks(config.tasks.heldout)}
    check_disjoint(sets["train"], sets["heldout"])
    return sets


def run_evaluation(config: Config, out: Path) -> int:
    """`arpo eval`: measure the recipe's model on its tasks and write the counts."""
    sets = load_sets(config)
    make_room(out)
    display = open_display(sys.stdout)
    try:
        ensemble = assemble(config)
        groups = asyncio.run(evaluate_sets(ensemble.scheduler, config, sets, "eval", display))
    finally:
        display.close()
    write_atomically(out, json.dumps(_record(config, groups), indent=1) + "\n")
    print(f"written to {out}")
    return 0


def make_room(out: Path) -> None:
    """Hours of rollouts must not end in a file that cannot be written."""
    if out.is_dir():
        raise UserError(f"--out {out}: is a folder; name a file in it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: its folder cannot be made: {error.strerror}") from error
    try:
        with NamedTemporaryFile(dir=out.parent):
            pass
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written there: {error.strerror}") from error


def _record(config: Config, groups: Mapping[str, Sequence[Group]]) -> dict[str, Any]:
    record: dict[str, Any] = {"model": config.model.path, "temperature": config.eval.temperature}
    for which in SETS:
        score = Score.of(groups[which])
        record[which] = {
            "success": score.rate if score.episodes else None,
            "successes": score.successes,
            "episodes": score.episodes,
            "failures": score.failures,
            "tasks": score.by_task,
        }
    return record
