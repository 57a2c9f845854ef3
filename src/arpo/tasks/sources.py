"""Tasks by source and by id: task lists, and the tasks of desk:fresh, made on demand."""

from __future__ import annotations

from collections.abc import Sequence

from arpo.config import FRESH, Config
from arpo.config.settings import TasksConfig
from arpo.envs.desk.fresh import FreshTasks, fresh_families, fresh_task, open_goal_mix
from arpo.envs.desk.goals import FAMILIES
from arpo.errors import UserError
from arpo.tasks.lists import load_tasks, select_tasks
from arpo.types import Task

_FRESH_KEYS = ("families", "goals", "distinct")


def open_tasks(source: str, config: Config) -> Sequence[Task]:
    """The tasks of a list, before tasks.domains and tasks.ids; or those of desk:fresh, made on access.

    Raises UserError for a bad list or setting.
    """
    settings = config.tasks
    if source != FRESH:
        for key in _FRESH_KEYS:
            if getattr(settings, key) != getattr(TasksConfig(), key):
                raise UserError(
                    f"tasks.{key}: is for {FRESH}, and the tasks are {source}: remove it, or use another "
                    "recipe, such as desk"
                )
        return load_tasks(source, settings.examples)
    if settings.ids:
        raise UserError(
            f"tasks.ids: is for task lists, and the tasks are {FRESH}: use tasks.families, or a list: "
            "--tasks.train desk:pool"
        )
    count = settings.distinct or config.train.tasks
    if not count:
        raise UserError(f"{source}: its tasks have no end: set tasks.distinct to a number of tasks")
    return FreshTasks(
        open_goal_mix(settings.families, settings.goals, settings.domains),
        seed=config.run.seed,
        count=count,
        max_steps=config.rollout.max_steps,
        endless=not settings.distinct,
    )


def chosen_tasks(source: str, config: Config) -> Sequence[Task]:
    """The tasks of a source that tasks.domains and tasks.ids choose."""
    tasks = open_tasks(source, config)
    return tasks if isinstance(tasks, FreshTasks) else select_tasks(tasks, config.tasks)


def is_endless(tasks: Sequence[Task]) -> bool:
    """Whether every visit is a new task: there is no fixed list to evaluate."""
    return isinstance(tasks, FreshTasks) and tasks.endless


class TaskIndex:
    """Tasks by id. With desk:fresh among the sets, every id of desk:fresh has a task."""

    def __init__(self, *sets: Sequence[Task]) -> None:
        self._listed = {
            task.id: task for tasks in sets if not isinstance(tasks, FreshTasks) for task in tasks
        }
        self._fresh = any(isinstance(tasks, FreshTasks) for tasks in sets)

    @property
    def listed(self) -> list[Task]:
        """The tasks of lists."""
        return list(self._listed.values())

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._listed or (self._fresh and bool(fresh_families(task_id)))

    def __getitem__(self, task_id: str) -> Task:
        if (task := self.get(task_id)) is None:
            raise KeyError(task_id)
        return task

    def get(self, task_id: str) -> Task | None:
        return self._listed.get(task_id) or (fresh_task(task_id) if self._fresh else None)


def task_kinds(task: Task) -> tuple[str, ...]:
    """What a task is about: the goal families of a task of Desk, the domain of others; () if it has none."""
    return goal_families(task) or ((task.domain,) if task.domain else ())


def goal_families(task: Task) -> tuple[str, ...]:
    """The goal families of a task of Desk, in its order; () for other tasks."""
    families = tuple(task.snapshot.split("+"))
    return families if FAMILIES.keys() >= set(families) else ()
