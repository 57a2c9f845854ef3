"""Task lists: loading them, choosing from them, keeping what screening found learnable, the order of epochs.

A source is one of
- "desk:NAME" or "desktop:NAME": a list shipped with the embedded desktop, or for real ones;
- a JSON file with a list of tasks in OSWorld's schema;
- a JSON file {"source": SOURCE, "tasks": {id: {"successes": 5, "rollouts": 16}}}: a selection, as screening
  writes it, if need be with "examples". Its paths are relative to its own folder;
- a JSON file {domain: [id, …]} beside OSWorld's folder examples/<domain>/<id>.json (or with that folder named
  as `examples`), or the folder that holds both (its test_all.json is read).

Everything wrong is a `UserError` that names the file, the place and the remedy. Nothing is skipped silently,
and no name in a list leads out of the folder that it is looked for in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from arpo.algorithms.curriculum import Count
from arpo.config import TasksConfig
from arpo.errors import UserError
from arpo.recipe import nearest
from arpo.types import Json, Task

SHIPPED = {"desk:": "desk", "desktop:": "osworld"}  # the prefix, and whose folder tasks/ holds the lists
OPTIONAL = {
    "config": [],
    "snapshot": "",
    "related_apps": [],
}  # keys that some of OSWorld's own tasks leave out
KINDS = {str: "a string", list: "a list", dict: "an object", int: "a whole number"}


def load_tasks(source: str, examples: str = "") -> tuple[Task, ...]:
    """The tasks of a source, in its order: at least one, no id twice."""
    return _load(source, Path(), Path(examples) if examples else None, ())


def load_counts(source: str, examples: str = "") -> dict[str, Count]:
    """What screening counted for each task of a selection, in its order; of any other source, nothing."""
    load_tasks(source, examples)  # refuses what is wrong with it
    match _read_json(_find(source, Path())):
        case {"source": str(), "tasks": dict(counts)}:
            return {
                name: Count(successes=count["successes"], rollouts=count["rollouts"])
                for name, count in counts.items()
            }
    return {}


def select_tasks(tasks: Sequence[Task], settings: TasksConfig) -> tuple[Task, ...]:
    """The tasks of the domains and with the ids that the settings name; where they name none, all."""
    domains, ids = _names(settings.domains), _names(settings.ids)
    there = sorted({task.domain for task in tasks})
    for domain in domains:
        if domain not in there:
            raise UserError(f"tasks.domains: no task of {domain!r}; there are: {', '.join(there)}")
    there = sorted(task.id for task in tasks)
    for name in ids:
        if name not in there:
            some = f" (there are {len(there)}: {', '.join(there[:3])}, …)"
            raise UserError(f"tasks.ids: no task {name!r}{nearest(name, there) or some}")
    chosen = [t for t in tasks if (not domains or t.domain in domains) and (not ids or t.id in ids)]
    if not chosen:
        raise UserError("tasks.ids: none of these tasks is of tasks.domains: leave one of the two out")
    return tuple(chosen)


def is_shipped(source: str) -> bool:
    return source.startswith(tuple(SHIPPED))


def escapes_folder(path: str) -> bool:
    """Whether a path leads out of the folder that it is to be looked for in, or to that folder itself.

    >>> escapes_folder("os/a.json"), escapes_folder("../a.json"), escapes_folder("/a.json"), escapes_folder(".")
    (False, True, True, True)
    """
    parts = path.replace("\\", "/").split("/")
    return parts[0] == "" or ".." in parts or set(parts) <= {"", "."} or "\0" in path


def format_selection(source: str, kept: Mapping[str, Count], examples: str = "") -> str:
    """The text of a selection file. Paths must be relative to that file's folder."""
    tasks = {task: {"successes": n.successes, "rollouts": n.rollouts} for task, n in kept.items()}
    content = {"source": source} | ({"examples": examples} if examples else {}) | {"tasks": tasks}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


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


def _names(text: str) -> list[str]:
    """ "chrome, os" -> ["chrome", "os"]"""
    return [name.strip() for name in text.split(",") if name.strip()]


def _load(source: str, folder: Path, examples: Path | None, trail: tuple[str, ...]) -> tuple[Task, ...]:
    """`folder` is what a relative path starts from, `trail` the selections that led here."""
    file = _find(source, folder)
    if str(file) in trail:
        raise UserError(f"{file}: this selection leads back to itself: name a task list as its 'source'")
    content = _read_json(file)
    match content:
        case list():
            tasks = [_task(entry, f"{file}: entry {n}") for n, entry in enumerate(content)]
        case {"source": str(inner), "tasks": dict(counts)}:
            parent = file.parent if isinstance(file, Path) else Path()
            if "examples" in content:
                examples = parent / _field(content, "examples", str, str(file))
            tasks = _selected(_load(inner, parent, examples, (*trail, str(file))), inner, counts, str(file))
        case dict() if examples or (isinstance(file, Path) and (file.parent / "examples").is_dir()):
            tasks = list(_indexed(content, str(file), examples or Path(str(file)).parent / "examples"))
        case _:
            raise UserError(
                f"{file}: must be a list of tasks, or a selection {{'source': …, 'tasks': {{id: counts}}}}, "
                "or {domain: [id, …]} beside a folder examples/ (or with tasks.examples)"
            )
    return _checked(tasks, str(file))


def _find(source: str, folder: Path) -> Traversable:
    return _shipped(source) if is_shipped(source) else _on_disk(folder / source)


def _shipped(source: str) -> Traversable:
    prefix = next(prefix for prefix in SHIPPED if source.startswith(prefix))
    lists = files("arpo") / "envs" / SHIPPED[prefix] / "tasks"
    there = [file.name for file in lists.iterdir()] if lists.is_dir() else []
    names = sorted(name.removesuffix(".json") for name in there if name.endswith(".json"))
    if source.removeprefix(prefix) not in names:
        known = ", ".join(prefix + name for name in names)
        raise UserError(f"{source}: no such shipped task list; there are: {known or 'none'}")
    return lists / f"{source.removeprefix(prefix)}.json"


def _on_disk(path: Path) -> Path:
    file = path / "test_all.json" if path.is_dir() else path
    if not file.is_file():
        remedy = "a folder of tasks holds test_all.json and examples/" if path.is_dir() else "check the path"
        shipped = " or ".join(f"{prefix}NAME" for prefix in SHIPPED)
        raise UserError(f"{file}: no such task file: {remedy}, or use a shipped list ({shipped})")
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


def _indexed(index: Mapping[str, Any], place: str, examples: Path) -> Iterator[Task]:
    if not examples.is_dir():
        raise UserError(
            f"{place}: its tasks are looked for in {examples}: no such folder: set tasks.examples"
        )
    for domain, ids in index.items():
        if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
            raise UserError(f"{place}: {domain!r}: must be a list of task ids")
        for name in ids:
            if escapes_folder(domain) or escapes_folder(name):
                raise UserError(f"{place}: {domain!r}: {name!r} leads out of {examples}: use plain names")
            path = examples / domain / f"{name}.json"
            if not path.is_file():
                raise UserError(
                    f"{place}: {domain!r}: task {name!r} has no file {path}: add it, or remove the id"
                )
            task = _task(_read_json(path), str(path), domain)
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


def _task(entry: Any, place: str, domain: str = "") -> Task:
    name = _field(entry, "id", str, place)
    place = f"{place} (id {name!r})"
    entry = OPTIONAL | entry
    apps = tuple(map(str, _field(entry, "related_apps", list, place)))
    domain = domain or _field({"domain": apps[0] if apps else ""} | entry, "domain", str, place)
    if escapes_folder(name) or (domain and escapes_folder(domain)):
        raise UserError(f"{place}: id and domain name files of the task's own: no path that leads elsewhere")
    return Task(
        id=name,
        instruction=_field(entry, "instruction", str, place),
        snapshot=_field(entry, "snapshot", str, place),
        config=_steps(entry, "config", place),
        evaluator=_evaluator(_field(entry, "evaluator", dict, place), place),
        related_apps=apps,
        domain=domain,
    )


def _steps(entry: Mapping[str, Any], key: str, place: str) -> tuple[Json, ...]:
    steps = _field(entry, key, list, place)
    if not all(isinstance(step, dict) for step in steps):
        raise UserError(f"{place}: key {key!r}: every step must be an object {{type, parameters}}")
    return tuple(steps)


def _evaluator(evaluator: Json, place: str) -> Json:
    """What any judge of OSWorld's schema relies on; an environment may ask for more, or for less."""
    place = f"{place}: key 'evaluator'"
    if "postconfig" in evaluator:
        _steps(evaluator, "postconfig", place)
    if evaluator.get("conj", "and") not in ("and", "or"):
        raise UserError(f'{place}: key \'conj\' must be "and" or "or", not {_shown(evaluator["conj"])}')
    func = evaluator.get("func", "")
    if isinstance(func, str):
        return evaluator
    if not isinstance(func, list) or not func or not all(isinstance(name, str) for name in func):
        raise UserError(f"{place}: key 'func' must be a name or a list of names, not {_shown(func)}")
    for key in ("result", "expected", "options"):
        value = evaluator.get(key) or func
        if not isinstance(value, list) or len(value) != len(func):
            raise UserError(
                f"{place}: key {key!r} must be a list of {len(func)}, one for each name in 'func'"
            )
    return evaluator


def _field(entry: Any, key: str, kind: type, place: str) -> Any:
    if not isinstance(entry, dict):
        raise UserError(f"{place}: must be an object, not {type(entry).__name__}")
    if key not in entry:
        raise UserError(f"{place}: key {key!r} is missing: add it, {KINDS[kind]}")
    value = entry[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{place}: key {key!r} must be {KINDS[kind]}, not {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    return json.dumps(value)[:40]
