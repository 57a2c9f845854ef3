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

from arpo.config import Config
from arpo.envs.osworld.needs import REMEDY, runnable
from arpo.envs.pool import Quarantined
from arpo.envs.task_files import check_disjoint, choose, load_tasks
from arpo.errors import UserError
from arpo.reporting.display import Display, open_display
from arpo.rollout.scheduler import Outcome, Scheduler, reason
from arpo.storage.run_folder import write_atomically
from arpo.training.build import assemble
from arpo.types import Group, Task

OVERALL = "overall"  # may share tasks with the others; is played before and after training alone
SETS = ("train", "heldout", OVERALL)
SKIPPED = "skipped.json"  # in a run's folder
TOLD = 3  # of the tasks that cannot run; a file has all of them


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
    """Each set of tasks with its own number of rollouts; part of the way is worth nothing here."""
    settings = config.eval
    counts = (settings.rollouts, settings.heldout_rollouts, settings.overall_rollouts)
    rollouts = dict(zip(SETS, counts, strict=True))
    groups: dict[str, list[Group]] = {}
    for which, tasks in sets.items():
        if not tasks:
            groups[which] = []
            continue
        display.begin(f"evaluating, {which} tasks", len(tasks) * rollouts[which])
        played = await evaluate(
            scheduler,
            list(enumerate(tasks)),
            name=f"{name}-{which}",
            rollouts=rollouts[which],
            temperature=config.eval.temperature,
            on_episode=lambda *_: display.episode_done(),
        )
        groups[which] = [without_partial(group, config.env.partial) for group in played]
        score = Score.of(groups[which])
        display.evaluation(f"{name}, {which} tasks", score.successes, score.episodes)
        tell_failures(groups[which], display)
    return groups


def without_partial(group: Group, partial: float) -> Group:
    """Scores as they are without env.partial, which is for learning: a goal is reached, or it is not."""
    reached = tuple(
        trajectory if trajectory.score > partial else replace(trajectory, score=0.0)
        for trajectory in group.trajectories
    )
    return replace(group, trajectories=reached)


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


def load_sets(config: Config) -> dict[str, tuple[Task, ...]]:
    """What the recipe names and chooses. Nothing need be held out; an empty tasks.overall is no set."""
    settings = config.tasks
    sources = (settings.train, settings.heldout, settings.overall)
    named = {
        which: load_tasks(source, settings.examples) if source else ()
        for which, source in zip(SETS, sources, strict=True)
    }
    check_disjoint(named["train"], named["heldout"])
    chosen = {task.id for task in choose([task for tasks in named.values() for task in tasks], settings)}
    sets = {which: tuple(task for task in tasks if task.id in chosen) for which, tasks in named.items()}
    if not sets["train"]:
        raise UserError("tasks.domains, tasks.ids: only held-out tasks are left: choose training tasks too")
    return sets if sets[OVERALL] else {which: tasks for which, tasks in sets.items() if which != OVERALL}


def playable(
    config: Config, sets: Mapping[str, Sequence[Task]]
) -> tuple[dict[str, tuple[Task, ...]], dict[str, str]]:
    """The sets without the tasks that cannot run here; and why those cannot, by id."""
    kept: dict[str, tuple[Task, ...]] = {}
    reasons: dict[str, str] = {}
    for which, tasks in sets.items():
        kept[which], others = runnable(tasks, config)
        if others and not kept[which]:
            raise UserError(
                f"none of the {len(tasks)} {which} tasks can run here; the first, {others[0][0].id}: "
                f"{others[0][1]}; {REMEDY}"
            )
        reasons |= {task.id: reason for task, reason in others}
    return kept, reasons


def sets_of_run(config: Config, folder: Path, begun: bool, display: Display) -> dict[str, tuple[Task, ...]]:
    """The tasks of a training run. One that has begun keeps its tasks: its place in them is a number."""
    sets, skipped = playable(config, load_sets(config))
    path = folder / SKIPPED
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if begun and (changed := sorted(before.keys() ^ skipped.keys())):
        raise UserError(
            f"{path}: other tasks can run here than when this run began, {changed[0]} for one: make it as it "
            "was (osworld.cache, osworld.network), or give the run a --run.dir of its own"
        )
    write_skipped(path, skipped, display)
    return sets


def write_skipped(path: Path, reasons: Mapping[str, str], display: Display) -> None:
    """Leave the reasons in a file of their own, where there are any."""
    path.unlink(missing_ok=True)
    if reasons:
        write_atomically(path, json.dumps(reasons, indent=1) + "\n")
    tell_skipped(reasons, path, display)


def tell_skipped(reasons: Mapping[str, str], where: Path, display: Display) -> None:
    if reasons:
        display.note(f"{len(reasons)} tasks cannot run here and are left out; all of them are in {where}:")
        for task, reason in list(reasons.items())[:TOLD]:
            display.note(f"  {task}: {reason}")


def run_evaluation(config: Config, out: Path) -> int:
    """`arpo eval`: measure the recipe's model on its tasks and write the counts."""
    sets, skipped = playable(config, load_sets(config))
    make_room(out)
    display = open_display(sys.stdout)
    try:
        tell_skipped(skipped, out, display)
        ensemble = assemble(config)
        groups = asyncio.run(evaluate_sets(ensemble.scheduler, config, sets, "eval", display))
    finally:
        display.close()
    write_atomically(out, json.dumps(_record(config, groups) | {"skipped": skipped}, indent=1) + "\n")
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
    for which, played in groups.items():
        score = Score.of(played)
        record[which] = {
            "success": score.rate if score.episodes else None,
            "successes": score.successes,
            "episodes": score.episodes,
            "failures": score.failures,
            "tasks": score.by_task,
        }
    return record
