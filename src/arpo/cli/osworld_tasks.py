"""The actions of `arpo osworld`: install, list and fetch-cache."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from arpo.config import Config, OSWorldConfig
from arpo.config.recipe import PROJECT, find_program
from arpo.envs.osworld.desktop_env_names import names_for, why_refused
from arpo.envs.osworld.fetch import fetch_cache
from arpo.envs.osworld.install import install_desktops
from arpo.envs.osworld.needs import LOCAL, Needs, needs
from arpo.envs.osworld.runnable import split_runnable, uncached
from arpo.errors import UserError
from arpo.evaluation.osworld_summary import by_reason
from arpo.reporting.display import count_noun
from arpo.tasks.lists import load_tasks, select_tasks
from arpo.types import Json, Task

PARALLEL_DOWNLOADS = 8


def run_osworld_action(
    action: str, config: Config, source: str | None, jobs: int | None, *, as_json: bool
) -> int:
    """`source` defaults to tasks.train, `jobs` to PARALLEL_DOWNLOADS. Returns the exit code."""
    tasks = select_tasks(load_tasks(source or config.tasks.train, config.tasks.examples), config.tasks)
    if action == "list":
        return list_tasks(tasks, config, as_json=as_json)
    return fetch_cache(tasks, config.osworld, jobs or PARALLEL_DOWNLOADS)


def run_install(osworld: OSWorldConfig, python: str | None) -> int:
    """Install desktop-env where osworld.python expects it. `python` defaults to this interpreter."""
    program = PROJECT / osworld.python
    if program.parts[-2:] != ("bin", "python"):
        raise UserError(
            f"osworld.python = {osworld.python!r}: cannot be installed there. Name a virtual "
            "environment: FOLDER/bin/python"
        )
    if python is not None and find_program(python) is None:
        raise UserError(f"--python {python}: no such program")
    install_desktops(program.parents[1], (python and find_program(python)) or sys.executable)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTask:
    task: Task
    need: Needs
    missing: tuple[str, ...]  # paths of needed files outside the cache
    refusal: str | None  # the name, unknown to desktop-env or unusable
    reason: str | None  # None: the task runs here

    @property
    def needs_text(self) -> str:
        """Example: "chrome, libreoffice_calc, 3 files (1 missing), network"."""
        need = self.need
        files = count_noun(len(need.files), "file") if need.files else ""
        missing = f" ({len(self.missing)} missing)" if self.missing else ""
        unusable = f"{self.refusal.partition(': ')[0]} (unusable)" if self.refusal else ""
        kinds = (f"{files}{missing}", "network" * need.network, "Google account" * need.account, unusable)
        return ", ".join([*sorted(need.applications), *filter(None, kinds)])

    def to_json(self) -> Json:
        return {
            "id": self.task.id,
            "domain": self.task.domain,
            "runs": self.reason is None,
            "reason": self.reason,
            "needs": {
                "applications": sorted(self.need.applications),
                "files": [file.path for file in self.need.files],
                "missing_files": list(self.missing),
                "network": self.need.network,
                "account": self.need.account,
            },
            "unusable": self.refusal,
        }


def list_tasks(tasks: Sequence[Task], config: Config, *, as_json: bool) -> int:
    known = names_for(config.env, config.osworld)
    _, skipped = split_runnable(tasks, config)
    reasons = {task.id: reason for task, reason in skipped}
    # Virtual machines download their files; hosts have caches of their own.
    uses_cache = config.osworld.provider == LOCAL and not config.env.hosts
    listed = [
        ListedTask(
            task=task,
            need=(need := needs(task)),
            missing=tuple(file.path for file in uncached(need, config.osworld.cache)) if uses_cache else (),
            refusal=why_refused(task, known),
            reason=reasons.get(task.id),
        )
        for task in tasks
    ]
    groups = by_reason(skipped)
    runs = len(tasks) - len(skipped)
    if as_json:
        counts = {reason: len(ids) for reason, ids in groups.items()}
        content = {"tasks": [each.to_json() for each in listed], "runs": runs, "skipped": counts}
        print(json.dumps(content, indent=1, ensure_ascii=False))
        return 0
    rows = [("runs", "domain", "task", "needs"), *map(_row, listed)]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[3]]).rstrip())
    print(f"{runs} of {count_noun(len(tasks), 'task')} can run here{'. The others:' if groups else ''}")
    print(*(f"  {len(ids)} x {reason}\n" for reason, ids in groups.items()), sep="", end="")
    return 0


def _row(listed: ListedTask) -> tuple[str, str, str, str]:
    return "no" if listed.reason else "yes", listed.task.domain, listed.task.id, listed.needs_text
