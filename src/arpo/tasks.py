"""Task lists: loading them, keeping those that screening found learnable, and the order of each epoch.

A source is one of
- "desk:NAME": a list shipped with the embedded desktop;
- a JSON file with a list of tasks in OSWorld's schema;
- a JSON file {"source": SOURCE, "tasks": {id: {"successes": 5, "rollouts": 16}}}: a selection, as screening
  writes it. A path in SOURCE is relative to the selection's folder;
- a JSON file {domain: [id, …]} beside OSWorld's folder examples/<domain>/<id>.json, or the folder that holds
  both (its test_all.json is read).

Everything wrong is a `UserError` that names the file, the place and the remedy. Nothing is skipped silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from random import Random
from typing import Any

from arpo.errors import UserError
from arpo.types import Task

SHIPPED = "desk:"
OPTIONAL = {
    "config": [],
    "snapshot": "",
    "related_apps": [],
}  # keys that some of OSWorld's own tasks leave out
KINDS = {str: "a string", list: "a list", dict: "an object", int: "a whole number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """How often the base model solved a task in screening."""

    successes: int
    rollouts: int


def load_tasks(source: str) -> tuple[Task, ...]:
    """The tasks of a source, in its order: at least one, no id twice."""
    return _load(source, Path(), ())


def keep(counts: Mapping[str, Count], *, drop_always: bool) -> dict[str, Count]:
    """The tasks that training can learn from: solved at least once and, by option, not every time."""
    return {
        task: count
        for task, count in counts.items()
        if count.successes >= 1 and not (drop_always and count.successes == count.rollouts)
    }


def selection(source: str, kept: Mapping[str, Count]) -> str:
    """The text of a selection file. Where `source` is a path, it must be relative to that file's folder."""
    tasks = {task: {"successes": n.successes, "rollouts": n.rollouts} for task, n in kept.items()}
    return json.dumps({"source": source, "tasks": tasks}, indent=1, ensure_ascii=False) + "\n"


def epoch_order(tasks: Sequence[Task], seed: int, epoch: int) -> tuple[Task, ...]:
    """A shuffle that (seed, epoch) alone decides: a resumed run needs no generator's state."""
    order = list(tasks)
    Random(f"tasks/{seed}/{epoch}").shuffle(order)
    return tuple(order)


def check_disjoint(train: Sequence[Task], heldout: Sequence[Task]) -> None:
    """Refuse a held-out task that training sees, by its id or as the same instruction on the same set-up."""
    train_ids = {task.id for task in train}
    train_contents = {_content(task): task.id for task in train}
    for task in heldout:
        same = task.id if task.id in train_ids else train_contents.get(_content(task))
        if same is not None:
            raise UserError(
                f"held-out task {task.id!r} is also training task {same!r}: remove it from tasks.train or "
                "tasks.heldout, or what is measured there is memory"
            )


def _content(task: Task) -> str:
    return json.dumps([task.instruction, task.config], sort_keys=True)


def _load(source: str, folder: Path, trail: tuple[str, ...]) -> tuple[Task, ...]:
    """`folder` is what a relative path starts from, `trail` the selections that led here."""
    file = _shipped(source) if source.startswith(SHIPPED) else _on_disk(folder / source)
    if str(file) in trail:
        raise UserError(f"{file}: this selection leads back to itself: name a task list as its 'source'")
    content = _read_json(file)
    match content:
        case list():
            tasks = [_task(entry, f"{file}: entry {n}") for n, entry in enumerate(content)]
        case {"source": str(inner), "tasks": dict(counts)}:
            parent = file.parent if isinstance(file, Path) else Path()
            tasks = _selected(_load(inner, parent, (*trail, str(file))), inner, counts, str(file))
        case dict() if isinstance(file, Path) and (file.parent / "examples").is_dir():
            tasks = list(_indexed(content, file))
        case _:
            raise UserError(
                f"{file}: must be a list of tasks, or a selection {{'source': …, 'tasks': {{id: counts}}}}, "
                "or {domain: [id, …]} beside a folder examples/"
            )
    return _checked(tasks, str(file))


def _shipped(source: str) -> Traversable:
    lists = files("arpo") / "envs" / "desk" / "tasks"
    names = sorted(file.name for file in lists.iterdir()) if lists.is_dir() else []
    wanted = source.removeprefix(SHIPPED) + ".json"
    if wanted not in names:
        known = ", ".join(SHIPPED + name.removesuffix(".json") for name in names if name.endswith(".json"))
        raise UserError(f"{source}: no such shipped task list; there are: {known or 'none'}")
    return lists / wanted


def _on_disk(path: Path) -> Path:
    file = path / "test_all.json" if path.is_dir() else path
    if not file.is_file():
        remedy = "a folder of tasks holds test_all.json and examples/" if path.is_dir() else "check the path"
        raise UserError(f"{file}: no such task file: {remedy}, or use a shipped list (desk:NAME)")
    return file


def _read_json(file: Traversable) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: byte {error.start}: not UTF-8 text: save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error


def _indexed(index: Mapping[str, Any], file: Path) -> Iterator[Task]:
    for domain, ids in index.items():
        if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
            raise UserError(f"{file}: {domain!r}: must be a list of task ids")
        for name in ids:
            path = file.parent / "examples" / domain / f"{name}.json"
            if not path.is_file():
                raise UserError(
                    f"{file}: {domain!r}: task {name!r} has no file {path}: add it, or remove the id"
                )
            task = _task(_read_json(path), str(path))
            if task.id != name:
                raise UserError(f"{path}: id is {task.id!r}: make it the file's name, {name!r}")
            yield task


def _selected(tasks: Sequence[Task], source: str, counts: Mapping[str, Any], place: str) -> list[Task]:
    by_id = {task.id: task for task in tasks}
    for name, count in counts.items():
        if name not in by_id:
            raise UserError(
                f"{place}: task {name!r} is not in {source!r}: remove it, or name the right source"
            )
        for key in ("successes", "rollouts"):
            _field(count, key, int, f"{place}: task {name!r}")
    return [by_id[name] for name in counts]


def _checked(tasks: Sequence[Task], place: str) -> tuple[Task, ...]:
    if not tasks:
        raise UserError(f"{place}: no task in it: add one, or screen with more rollouts")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise UserError(f"{place}: id {task.id!r} occurs twice: give every task an id of its own")
        seen.add(task.id)
    return tuple(tasks)


def _task(entry: Any, place: str) -> Task:
    name = _field(entry, "id", str, place)
    place = f"{place} (id {name!r})"
    entry = OPTIONAL | entry
    config = _field(entry, "config", list, place)
    if not all(isinstance(step, dict) for step in config):
        raise UserError(f"{place}: key 'config': every step must be an object {{type, parameters}}")
    return Task(
        id=name,
        instruction=_field(entry, "instruction", str, place),
        snapshot=_field(entry, "snapshot", str, place),
        config=tuple(config),
        evaluator=_field(entry, "evaluator", dict, place),
        related_apps=tuple(map(str, _field(entry, "related_apps", list, place))),
    )


def _field(entry: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(entry, dict):
        raise UserError(f"{place}: must be an object, not {type(entry).__name__}")
    if key not in entry:
        raise UserError(f"{place}: key {key!r} is missing: add it, {KINDS[kind]}")
    value = entry[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{place}: key {key!r} must be {KINDS[kind]}, not {json.dumps(value)[:40]}")
    return value
