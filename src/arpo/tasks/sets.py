"""The task sets of a recipe: training, held-out and overall tasks, without those that cannot run here."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from arpo.config import Config, EnvConfig
from arpo.config.settings import EvalConfig, TasksConfig
from arpo.config.task_set_names import (
    DESK,
    GENERATED,
    GYM_PREFIXES,
    HALVES,
    HELDOUT,
    OVERALL,
    TRAIN,
    heldout_sets,
    set_label,
    split_sources,
)
from arpo.envs.desk.fresh import FreshTasks
from arpo.envs.desk.heldout import APPLICATION_FAMILIES, HELDOUT_FAMILIES
from arpo.envs.factory import plays_desk, uses_hosts
from arpo.envs.osworld.runnable import split_runnable
from arpo.errors import UserError
from arpo.reporting.display import Display, count_noun
from arpo.storage.files import read_json, write_atomically
from arpo.tasks.lists import check_disjoint, load_tasks, select_tasks
from arpo.tasks.order import required_counts
from arpo.tasks.sources import goal_families, is_endless, open_tasks
from arpo.types import Task

SKIPPED = "skipped.json"  # in the run folder
# Goal families that only a generated set has, by its name.
HELDOUT_LEVELS = {
    name: families
    for level, families in (("families", HELDOUT_FAMILIES), ("applications", APPLICATION_FAMILIES))
    for name in (f"{level}_{half}" for half in HALVES)
}
_SHOWN = 3  # skipped tasks on the screen; the file lists all


def load_sets(config: Config) -> dict[str, Sequence[Task]]:
    """Load the tasks of each set and apply tasks.domains and tasks.ids. Those of desk:fresh stay unmade.

    A single held-out set may be empty. The overall set may overlap with the others; it is absent if
    tasks.overall is empty. Generated held-out sets are complete, whatever tasks.domains and tasks.ids are.
    Raises UserError if a held-out task is also a training task, or if no training task is left.
    """
    settings = config.tasks
    refuse_desk_tasks(
        config.env, {TRAIN: settings.train, HELDOUT: settings.heldout, OVERALL: settings.overall}
    )
    train = open_tasks(settings.train, config)
    sources = heldout_sets(settings.heldout)
    heldout = {
        name: load_tasks(source, settings.examples) if source else () for name, source in sources.items()
    }
    overall = {OVERALL: load_tasks(settings.overall, settings.examples)} if settings.overall else {}
    held_out = [task for tasks in heldout.values() for task in tasks]
    if isinstance(train, FreshTasks):
        train, listed = train.without(held_out), {}
    else:
        check_disjoint(train, held_out)
        listed = {TRAIN: train}
    generated = {name: heldout[name] for name, source in sources.items() if source in GENERATED}
    listed |= {name: tasks for name, tasks in (heldout | overall).items() if name not in generated}
    chosen = _chosen([task for tasks in listed.values() for task in tasks], settings)
    kept = {name: tuple(task for task in tasks if task.id in chosen) for name, tasks in listed.items()}
    if kept.get(TRAIN) == ():
        raise UserError("tasks.domains, tasks.ids: only held-out tasks are left. Choose training tasks too")
    sets: dict[str, Sequence[Task]] = {TRAIN: train} | heldout | overall | kept
    if config.env.name == "browser":
        from arpo.envs.browser.spec import read_task

        for task in (task for tasks in sets.values() for task in tasks):
            read_task(task, session="", functions=not uses_hosts(config.env))
    if config.env.name.startswith(GYM_PREFIXES):
        from arpo.envs.gymnasium.tasks import read_task as read_gymnasium_task

        for task in (task for tasks in sets.values() for task in tasks):
            read_gymnasium_task(task, "")
    return {name: tasks for name, tasks in sets.items() if tasks or name != OVERALL}


def _chosen(tasks: Sequence[Task], settings: TasksConfig) -> set[str]:
    return {task.id for task in select_tasks(tasks, settings)} if tasks else set()


def refuse_desk_tasks(env: EnvConfig, sources: Mapping[str, str]) -> None:
    """Refuse the shipped tasks of Desk, which are the defaults, for another environment."""
    wrong = [
        name for name, text in sources.items() if any(one.startswith(DESK) for one in split_sources(text))
    ]
    if not wrong or plays_desk(env):
        return
    listed = ", ".join(f"tasks.{name} = {sources[name]!r}" for name in wrong)
    gym = env.name.startswith(GYM_PREFIXES)
    own, example = ("a list of instances", env.name) if gym else ("a task file of your own", "tasks.json")
    remedies = [f'tasks.train to {own}, such as "{example}"'] if "train" in wrong else []
    others = [f"tasks.{name}" for name in wrong if name != "train"]
    if others:
        remedies.append(f'{" and ".join(others)} to {"another one" if remedies else own} or to ""')
    raise UserError(
        f"{listed}: tasks of Desk, which env.name = {env.name!r} cannot play: set {', and '.join(remedies)}"
    )


def rollouts_of(name: str, settings: EvalConfig) -> int:
    """Episodes per task of a set in an evaluation."""
    return {TRAIN: settings.rollouts, OVERALL: 1}.get(name, settings.heldout_rollouts)


def evaluated(sets: Mapping[str, Sequence[Task]], settings: EvalConfig) -> dict[str, Sequence[Task]]:
    """The sets that an evaluation plays.

    Endless training tasks are no fixed list, so they are left out. So are those with eval.rollouts = 0, and
    tasks without an evaluator.
    """
    listed = {
        name: tasks for name, tasks in sets.items() if rollouts_of(name, settings) and not is_endless(tasks)
    }
    scored = {name: [task for task in tasks if task.has_evaluator] for name, tasks in listed.items()}
    return {name: tasks for name, tasks in scored.items() if tasks or not listed[name]}


def require_scores(config: Config, sets: Mapping[str, Sequence[Task]]) -> None:
    """Raise UserError if a training task has no evaluator, and no judge scores its episodes."""
    if not config.reward.judge:
        remedy = "set reward.judge, so that a judge scores their episodes, or add an evaluator"
        require_evaluators(sets[TRAIN], remedy)


def require_evaluators(train: Sequence[Task], remedy: str) -> None:
    if isinstance(train, FreshTasks):
        return
    if without := [task.id for task in train if not task.has_evaluator]:
        raise UserError(
            f"{count_noun(len(without), 'training task')} without an evaluator, for example {without[0]}: "
            f"{remedy}"
        )


def playable(
    config: Config, sets: Mapping[str, Sequence[Task]]
) -> tuple[dict[str, Sequence[Task]], dict[str, str]]:
    """Split off the tasks that cannot run on this machine. Returns the rest, and reasons by task id."""
    kept: dict[str, Sequence[Task]] = {}
    reasons: dict[str, str] = {}
    for name, tasks in sets.items():
        kept[name], others = split_runnable(tasks, config)
        if others and not kept[name]:
            raise UserError(
                f"none of the {len(tasks)} {name} tasks can run here; the first, {others[0][0].id}: "
                f"{others[0][1]}"
            )
        reasons |= {task.id: reason for task, reason in others}
    return kept, reasons


def sets_of_run(config: Config, folder: Path, resumed: bool, display: Display) -> dict[str, Sequence[Task]]:
    """The task sets of a training run, with the skipped tasks written to skipped.json.

    A resumed run must have the same tasks as before: its progress is an index into them.
    """
    sets, skipped = playable(config, load_sets(config))
    if config.train.curriculum == "middle":
        required_counts(config)  # before the model is loaded
    path = folder / SKIPPED
    if resumed and (changed := sorted(read_json(path).keys() ^ skipped.keys())):
        raise UserError(
            f"{path}: the set of runnable tasks has changed since this run began, for example {changed[0]}. "
            "Restore the earlier state (osworld.cache, osworld.network), or choose another --run.dir"
        )
    write_skipped(path, skipped, display)
    for text in (*known_families(sets), *audit_notes(config, sets)):
        display.note(text)
    return sets


def audit_notes(config: Config, sets: Mapping[str, Sequence[Task]]) -> list[str]:
    """A note if most batches have no task with an evaluator, which shows the errors of a judge."""
    train, per_batch = sets[TRAIN], config.train.tasks_per_batch
    if not config.reward.judge or isinstance(train, FreshTasks):
        return []
    audited = sum(task.has_evaluator for task in train)
    if audited * per_batch >= len(train):
        return []
    return [
        f"training tasks with an evaluator: {audited} of {len(train)}. Most batches do not show how often "
        "the judge is wrong: give more tasks an evaluator"
    ]


def known_families(sets: Mapping[str, Sequence[Task]]) -> list[str]:
    """Notes on generated held-out sets whose goal families occur in the training tasks: they are not new."""
    if isinstance(sets[TRAIN], FreshTasks):  # they have none of these families
        return []
    notes = []
    for name, families in HELDOUT_LEVELS.items():
        counts = Counter(
            family for task in sets[TRAIN] for family in goal_families(task) if family in families
        )
        if name in sets and counts:
            some = ", ".join(f"{family} ({count})" for family, count in counts.most_common(_SHOWN))
            notes.append(
                f"{set_label(name)}: training tasks have goals of these families, so they are not new to the "
                f"model: {some}. tasks.train = desk:fresh has none of them"
            )
    return notes


def write_skipped(path: Path, reasons: Mapping[str, str], display: Display) -> None:
    """Write the reasons as JSON, and show the first ones. Removes the file if no task is skipped."""
    path.unlink(missing_ok=True)
    if reasons:
        write_atomically(path, json.dumps(reasons, indent=1) + "\n")
    report_skipped(reasons, path, display)


def report_skipped(reasons: Mapping[str, str], path: Path | None, display: Display) -> None:
    """Show the first reasons; all of them if no file has them."""
    if reasons:
        tasks = count_noun(len(reasons), "task")
        where = f". {path} has all reasons" if path else ""
        display.note(f"skipping {tasks} that cannot run here{where}:")
        for task, reason in list(reasons.items())[: _SHOWN if path else None]:
            display.note(f"  {task}: {reason}")
