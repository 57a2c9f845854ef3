"""Task lists: loading them and selecting from them.

A source is one of
- "desk:NAME" or "osworld:NAME": a shipped list of this environment ("desktop:" is an alias of "osworld:");
- "desk:LEVEL/HALF": a generated held-out set of Desk, for example "desk:instances/validation";
- "openenv:URL#SPLIT": the tasks of a split of an OpenEnv server;
- a JSON file with a list of tasks in OSWorld's schema;
- a selection, as screening writes it: {"source": SOURCE, "tasks": {id: {"successes": 5, "rollouts": 16}}},
  optionally with "examples"; its paths are relative to its own folder;
- a selection of desk:fresh, whose ids are enough to make its tasks;
- a JSON file {domain: [id, …]} next to OSWorld's folder examples/<domain>/<id>.json (or with `examples`
  set to this folder), or the folder of both (its test_all.json is read).

Every defect is a `UserError` with the file, the entry and the fix. Nothing is skipped silently, and no
name in a list can lead out of its folder. A file is a regular one of at most 64 MiB, read without waiting.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from arpo.config import FRESH, TasksConfig
from arpo.config.recipe import canonical_task_source, nearest
from arpo.config.settings import LARGEST
from arpo.config.task_set_names import GENERATED, GYM_PREFIXES, MINIWOB, OPENENV
from arpo.dialects.base import ParseError
from arpo.dialects.ui_tars import parse_solution
from arpo.errors import UserError
from arpo.storage.files import check_depth, escapes_folder, read_regular
from arpo.tasks.screened import Count
from arpo.types import Json, Task

SHIPPED_LISTS = {"desk:": "desk", "osworld:": "osworld"}  # prefix: the folder of envs with tasks/NAME.json
# Defaults of keys missing in some of OSWorld's own tasks.
DEFAULTS = {"config": [], "snapshot": "", "related_apps": [], "solution": []}
MAX_TRAIL = 20
MAX_FILE_BYTES = 64 << 20
TYPE_NAMES = {str: "a string", list: "a list", dict: "an object", int: "an integer"}


def load_tasks(source: str, examples: str = "") -> tuple[Task, ...]:
    """Return the tasks of a source in its order: at least one, with unique ids."""
    return _load(source, Path(), Path(examples) if examples else None, ())


def load_counts(source: str, examples: str = "") -> dict[str, Count]:
    """Return the screening counts of a selection by task id, in its order; {} for any other source."""
    load_tasks(source, examples)  # reports defects
    if source in GENERATED or source.startswith((MINIWOB, OPENENV)):
        return {}
    match _read_json(_find(source, Path())):
        case {"source": str(), "tasks": dict(counts)}:
            return {
                name: Count(successes=count["successes"], rollouts=count["rollouts"])
                for name, count in counts.items()
            }
    return {}


def select_tasks(tasks: Sequence[Task], settings: TasksConfig) -> tuple[Task, ...]:
    """Return the tasks matching `tasks.domains` and `tasks.ids`; an empty setting matches all."""
    domains, ids = _names(settings.domains), _names(settings.ids)
    known = sorted({task.domain for task in tasks})
    for domain in domains:
        if domain not in known:
            raise UserError(
                f"tasks.domains: no task of domain {domain!r}; the domains are: {', '.join(known)}"
            )
    known = sorted(task.id for task in tasks)
    for name in ids:
        if name not in known:
            example = ",".join(task.id for task in tasks[:2])
            raise UserError(
                f"tasks.ids: no task {name!r} among the {len(known)} tasks{nearest(name, known)}. Example: "
                f"--tasks.ids {example}"
            )
    selected = [t for t in tasks if (not domains or t.domain in domains) and (not ids or t.id in ids)]
    if not selected:
        raise UserError("tasks.ids: none of these tasks is in tasks.domains: remove one of the two settings")
    return tuple(selected)


def is_shipped(source: str) -> bool:
    return canonical_task_source(source).startswith(tuple(SHIPPED_LISTS))


def check_disjoint(train: Sequence[Task], heldout: Sequence[Task]) -> None:
    """Raise UserError if a held-out task has the id of a training task, or its instruction and set-up."""
    train_ids = {task.id for task in train}
    train_contents = {task.content: task.id for task in train}
    for task in heldout:
        same = task.id if task.id in train_ids else train_contents.get(task.content)
        if same is not None:
            raise UserError(
                f"held-out task {task.id!r} is also training task {same!r}: remove it from tasks.train or "
                "tasks.heldout"
            )


def _names(text: str) -> list[str]:
    """Split "chrome, os" into ["chrome", "os"]."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _load(source: str, folder: Path, examples: Path | None, trail: tuple[str, ...]) -> tuple[Task, ...]:
    """`folder` is the base of relative paths; `trail` holds the selections referring to this source."""
    if source in GENERATED:
        from arpo.envs.desk.heldout import heldout_tasks  # here: it loads numpy

        return heldout_tasks(source)
    if source.startswith(MINIWOB):
        from arpo.envs.browser.miniwob import miniwob_tasks  # here: an extra

        return _checked(miniwob_tasks(source.removeprefix(MINIWOB)), source)
    if source.startswith(OPENENV):
        from arpo.envs.openenv.server import openenv_tasks  # here: it asks a server

        return _checked(openenv_tasks(source), source)
    if source.startswith(GYM_PREFIXES):
        from arpo.envs.gymnasium.tasks import gymnasium_tasks

        return _checked(gymnasium_tasks(source), source)
    file = _find(source, folder)
    if str(file) in trail:
        raise UserError(f"{file}: this selection refers to itself: set 'source' to a task list")
    if len(trail) > MAX_TRAIL:
        raise UserError(f"{file}: more than {MAX_TRAIL} selections refer to each other: merge some")
    content = _read_json(file)
    match content:
        case list():
            tasks = [_task(entry, f"{file}: entry {n}") for n, entry in enumerate(content)]
        case {"source": str(inner), "tasks": dict(counts)}:
            parent = file.parent if isinstance(file, Path) else Path()
            if "examples" in content:
                examples = parent / _field(content, "examples", str, str(file))
            whole = (
                _made(counts, str(file))
                if inner == FRESH
                else _load(inner, parent, examples, (*trail, str(file)))
            )
            tasks = _selected(whole, inner, counts, str(file))
        case dict() if examples or (isinstance(file, Path) and (file.parent / "examples").is_dir()):
            tasks = list(_indexed(content, str(file), examples or Path(str(file)).parent / "examples"))
        case _:
            raise UserError(
                f"{file}: must be a list of tasks, or a selection {{'source': …, 'tasks': {{id: counts}}}}, "
                "or {domain: [id, …]} next to a folder examples/ (or with tasks.examples set)"
            )
    return _checked(tasks, str(file))


def _made(ids: Iterable[str], location: str) -> list[Task]:
    from arpo.envs.desk.fresh import fresh_task  # here: it loads numpy

    found = {name: fresh_task(name) for name in ids}
    for name, task in found.items():
        if task is None:
            raise UserError(f"{location}: {name!r} is no id of {FRESH}: remove it, or correct 'source'")
    return [task for task in found.values() if task is not None]


def _find(source: str, folder: Path) -> Traversable:
    return _shipped(source) if is_shipped(source) else _on_disk(folder / source)


def _shipped(source: str) -> Traversable:
    canonical = canonical_task_source(source)
    if canonical == FRESH:
        raise UserError(
            f"{source}: makes tasks on demand for tasks.train and `arpo screen`: use a task list here"
        )
    prefix = next(prefix for prefix in SHIPPED_LISTS if canonical.startswith(prefix))
    lists = files("arpo") / "envs" / SHIPPED_LISTS[prefix] / "tasks"
    found = [file.name for file in lists.iterdir()] if lists.is_dir() else []
    names = sorted(name.removesuffix(".json") for name in found if name.endswith(".json"))
    if canonical.removeprefix(prefix) not in names:
        generated = [source for source in (*GENERATED, FRESH) if source.startswith(prefix)]
        known = [*(prefix + name for name in names), *generated]
        close = get_close_matches(canonical.lower().removeprefix(prefix), _without(prefix, known), 1, 0.75)
        meant = f" (did you mean {prefix}{close[0]}?)" if close else ""
        listed = ", ".join(known) or "none"
        raise UserError(f"{source}: no such shipped task list{meant}; the lists are: {listed}")
    return lists / f"{canonical.removeprefix(prefix)}.json"


def _without(prefix: str, names: Sequence[str]) -> list[str]:
    return [name.removeprefix(prefix) for name in names]


def _on_disk(path: Path) -> Path:
    file = path / "test_all.json" if path.is_dir() else path
    if not file.is_file():
        remedy = "a task folder contains test_all.json and examples/" if path.is_dir() else "check the path"
        shipped = " or ".join(f"{prefix}NAME" for prefix in SHIPPED_LISTS)
        raise UserError(
            f"{file}: no such task file: {remedy}, or use a shipped list ({shipped}); "
            "--tasks.ids chooses some tasks of a list"
        )
    return file


def _read_json(file: Traversable) -> Any:
    try:
        text = read_regular(file, MAX_FILE_BYTES) if isinstance(file, Path) else file.read_bytes()
        content = json.loads(text.decode("utf-8"))
        check_depth(content)
        if b"\\u" in text:
            json.dumps(content, ensure_ascii=False).encode()  # raises for half a surrogate pair
        return content
    except json.JSONDecodeError as error:
        raise UserError(
            f"{file}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: byte {error.start}: not UTF-8 text: save the file as UTF-8") from error
    except UnicodeEncodeError as error:
        half, before = error.object[error.start], error.object[max(0, error.start - 20) : error.start]
        raise UserError(
            f"{file}: \\u{ord(half):04x} after {before!r} is half a character: write the whole character"
        ) from error
    except RecursionError as error:
        raise UserError(f"{file}: nested too deeply") from error
    except ValueError as error:  # also a number of thousands of digits
        raise UserError(f"{file}: {error}") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from error


def _indexed(index: Mapping[str, Any], location: str, examples: Path) -> Iterator[Task]:
    if not examples.is_dir():
        raise UserError(
            f"{location}: the folder of its tasks, {examples}, does not exist: set tasks.examples"
        )
    for domain, ids in index.items():
        if not isinstance(ids, list) or not all(isinstance(name, str) for name in ids):
            raise UserError(f"{location}: {domain!r}: must be a list of task ids")
        for name in ids:
            if escapes_folder(domain) or escapes_folder(name):
                raise UserError(f"{location}: {domain!r}: {name!r} leads out of {examples}: use plain names")
            path = examples / domain / f"{name}.json"
            if not path.is_file():
                raise UserError(
                    f"{location}: {domain!r}: task {name!r} has no file {path}: add it, or remove the id"
                )
            task = _task(_read_json(path), str(path), domain)
            if task.id != name:
                raise UserError(f"{path}: id is {task.id!r}: change it to the file name, {name!r}")
            yield task


def _selected(tasks: Sequence[Task], source: str, counts: Mapping[str, Any], location: str) -> list[Task]:
    by_id = {task.id: task for task in tasks}
    for name, count in counts.items():
        if name not in by_id:
            raise UserError(f"{location}: task {name!r} is not in {source!r}: remove it, or correct 'source'")
        successes, rollouts = (
            _field(count, key, int, f"{location}: task {name!r}") for key in ("successes", "rollouts")
        )
        if not 0 <= successes <= rollouts <= LARGEST:
            raise UserError(
                f"{location}: task {name!r}: {successes} successes of {rollouts} rollouts are not possible: "
                "screen the tasks again"
            )
    return [by_id[name] for name in counts]


def _checked(tasks: Sequence[Task], location: str) -> tuple[Task, ...]:
    if not tasks:
        raise UserError(f"{location}: contains no task: add one, or screen with more rollouts")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise UserError(f"{location}: id {task.id!r} occurs twice: make the ids unique")
        seen.add(task.id)
    return tuple(tasks)


def _task(entry: Any, location: str, domain: str = "") -> Task:
    name = _field(entry, "id", str, location)
    location = f"{location} (id {name!r})"
    entry = DEFAULTS | entry
    apps = tuple(map(str, _field(entry, "related_apps", list, location)))
    domain = domain or _field({"domain": apps[0] if apps else ""} | entry, "domain", str, location)
    if escapes_folder(name) or (domain and escapes_folder(domain)):
        raise UserError(f"{location}: id and domain become file names: do not use '..' or an absolute path")
    return Task(
        id=name,
        instruction=_field(entry, "instruction", str, location),
        snapshot=_field(entry, "snapshot", str, location),
        config=_steps(entry, "config", location),
        evaluator=_evaluator(_field(entry, "evaluator", dict, location), location),
        related_apps=apps,
        domain=domain,
        solution=_solution(_field(entry, "solution", list, location), location),
    )


def _solution(steps: Sequence[Any], location: str) -> tuple[str, ...]:
    for number, step in enumerate(steps, 1):
        try:
            if not isinstance(step, str):
                raise ParseError(f"{_excerpt(step)} is not a string")
            parse_solution([step])
        except ParseError as error:
            raise UserError(
                f"{location}: key 'solution': step {number}: {error}: write a call such as "
                "\"click(start_box='(105,63)')\""
            ) from None
    return tuple(steps)


def _steps(entry: Mapping[str, Any], key: str, location: str) -> tuple[Json, ...]:
    steps = _field(entry, key, list, location)
    if not all(isinstance(step, dict) for step in steps):
        raise UserError(f"{location}: key {key!r}: every step must be an object {{type, parameters}}")
    return tuple(steps)


def _evaluator(evaluator: Json, location: str) -> Json:
    """Check the common parts of OSWorld's evaluator schema."""
    location = f"{location}: key 'evaluator'"
    if "postconfig" in evaluator:
        _steps(evaluator, "postconfig", location)
    if evaluator.get("conj", "and") not in ("and", "or"):
        raise UserError(f'{location}: key \'conj\' must be "and" or "or", not {_excerpt(evaluator["conj"])}')
    func = evaluator.get("func", "")
    if isinstance(func, str):
        return evaluator
    if not isinstance(func, list) or not func or not all(isinstance(name, str) for name in func):
        raise UserError(f"{location}: key 'func' must be a name or a list of names, not {_excerpt(func)}")
    for key in ("result", "expected", "options"):
        value = evaluator.get(key) or func
        if not isinstance(value, list) or len(value) != len(func):
            raise UserError(f"{location}: key {key!r} must be a list of {len(func)}, one per name in 'func'")
    return evaluator


def _field(entry: Any, key: str, kind: type, location: str) -> Any:
    if not isinstance(entry, dict):
        raise UserError(f"{location}: must be an object, not {type(entry).__name__}")
    if key not in entry:
        raise UserError(f"{location}: key {key!r} is missing: add it ({TYPE_NAMES[kind]})")
    value = entry[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise UserError(f"{location}: key {key!r} must be {TYPE_NAMES[kind]}, not {_excerpt(value)}")
    return value


def _excerpt(value: Any) -> str:
    return json.dumps(value)[:40]
