"""Instructions of tasks, for the pages of a run.

The recipe names task files, and it may come from somebody else. So only shipped lists are read, and files
outside of the viewed folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from arpo.config import Config
from arpo.config.task_set_names import split_sources
from arpo.envs.desk.fresh import fresh_task
from arpo.errors import UserError
from arpo.tasks.lists import is_shipped, load_counts, load_tasks
from arpo.tasks.screened import Count
from arpo.tasks.sources import task_kinds
from arpo.types import Task
from arpo.viewer.files import SafeFolder

INFEASIBLE = "infeasible"  # name of the checker


class TaskTexts:
    """Facts about the tasks of one run. Tasks of desk:fresh are made again from their ids."""

    def __init__(self, config: Config, folder: SafeFolder) -> None:
        self._config, self._folder = config, folder

    def load(self) -> None:
        """Read the task lists, which takes some hundred milliseconds the first time."""
        assert self._tasks is not None

    def instruction(self, task_id: str) -> str:
        """The instruction of a task, "" if it is not known."""
        task = self._task(task_id)
        return task.instruction if task else ""

    def kinds(self, task_id: str) -> tuple[str, ...]:
        """What a task is about; () if it is not known."""
        task = self._task(task_id)
        return task_kinds(task) if task else ()

    def is_infeasible(self, task_id: str) -> bool:
        task = self._task(task_id)
        return task is not None and task.evaluator.get("func") == INFEASIBLE

    def _task(self, task_id: str) -> Task | None:
        return self._tasks.get(task_id) or _fresh_task(task_id)

    @cached_property
    def _tasks(self) -> dict[str, Task]:
        settings = self._config.tasks
        sources = (settings.overall, *split_sources(settings.heldout), settings.train)
        return {task.id: task for source in sources for task in self._load(source)}

    def _load(self, source: str) -> Sequence[Task]:
        """The tasks of a list that may be read; none of others."""
        try:
            return load_tasks(source, self._config.tasks.examples) if self._may_load(source) else ()
        except (UserError, OSError, ValueError):
            return ()

    def screening_counts(self) -> dict[str, Count]:
        """Screening counts of the training tasks; {} if their list may not be read or has none."""
        settings = self._config.tasks
        try:
            return load_counts(settings.train, settings.examples) if self._may_load(settings.train) else {}
        except (UserError, OSError, ValueError):
            return {}

    def _may_load(self, source: str) -> bool:
        examples = self._config.tasks.examples
        if not source or (examples and not self._is_readable(examples)):
            return False
        return is_shipped(source) or self._is_readable(source)

    def _is_readable(self, path: str) -> bool:
        try:
            return not Path(path).resolve().is_relative_to(self._folder.root)
        except (OSError, ValueError, RuntimeError):
            return False


@lru_cache(4096)
def _fresh_task(task_id: str) -> Task | None:
    return fresh_task(task_id)
