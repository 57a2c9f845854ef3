"""External needs of an OSWorld task: files, network, a Google account, applications.

They are read from the task alone, without desktop-env. File names are those in desktop-env's cache:
<task id>/<uuid5 of the url>_<name> for files of setup steps, <task id>/<dest> for files of the evaluator.

A task is rejected if it would write outside its own cache folder or read files of this machine.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from arpo.errors import UserError
from arpo.storage.files import escapes_folder
from arpo.types import Json, Task

SHIPPED_PREFIX = "arpo:"  # URL prefix of files in this package
LOCAL = "local"  # name of the provider with light desktops

EMPTY_HISTORY = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)

APPLICATIONS = {
    "chrome", "gimp", "libreoffice_calc", "libreoffice_impress", "libreoffice_writer", "thunderbird", "vlc",
    "vs_code",
}  # fmt: skip
APPLICATION_ALIASES = {
    "vscode": "vs_code",
    "browser": "chrome",
    "calc": "libreoffice_calc",
    "impress": "libreoffice_impress",
    "writer": "libreoffice_writer",
}

ACCOUNT_PARTS = {"login", "googledrive", "googledrive_file"}  # they sign in to a Google account
# They open a web page or read the address bar.
NETWORK_GETTERS = {
    "active_tab_html_parse", "active_tab_info", "active_tab_url_parse", "active_url_from_accessTree",
    "gotoRecreationPage_and_get_html_content", "info_from_website",
    "macys_product_url_parse", "number_of_search_results", "page_info", "pdf_from_url", "url_dashPart",
    "url_path_parse",
}  # fmt: skip
WEB_URL = re.compile(r"https?://(?!localhost|127\.)")
DOWNLOAD_COMMAND = re.compile(
    r"\b(apt|apt-get|snap|pip3?|conda|npm)\b[^|;&]*\binstall\b|\b(wget|curl|git clone)\b[^|;&]*"
    + WEB_URL.pattern
)

# OSWorld's tasks with an instruction to install, look up or download something from the web.
WEB_INSTRUCTION_TASKS = {
    "3c8f201a-009d-4bbe-8b65-a6f8b35bb57f", "42f4d1c7-4521-4161-b646-0a8934e36081",
    "48c46dc7-fe04-4505-ade7-723cba1aa6f6", "48d05431-6cd5-4e76-82eb-12b60d823f7d",
    "4e60007a-f5be-4bfc-9723-c39affa0a6d3", "68a25bd4-59c7-4f4d-975e-da0c8509c848",
    "69acbb55-d945-4927-a87b-8480e1a5bb7e", "6f4073b8-d8ea-4ade-8a18-c5d1d5d5aa9a",
    "788b3701-3ec9-4b67-b679-418bfa726c22", "7ff48d5b-2df2-49da-b500-a5150ffc7f18",
    "873cafdd-a581-47f6-8b33-b9696ddb7b05", "94d95f96-9699-4208-98ba-3c3119edf9c2",
    "a82b78bb-7fde-4cb3-94a4-035baf10bcf0", "aad10cd7-9337-4b62-b704-a857848cedf2",
    "acb0f96b-e27c-44d8-b55f-7cb76609dfcd", "b337d106-053f-4d37-8da0-7f9c4043a66b",
    "bba3381f-b5eb-4439-bd9e-80c22218d5a7", "c7c1e4c3-9e92-4eba-a4b8-689953975ea4",
    "d1acdb87-bb67-4f30-84aa-990e56a09c92", "da52d699-e8d2-4dc5-9191-a2199e0b6a9b",
    "deec51c9-3b1e-4b9e-993c-4776f20e8bb2", "e1fc0df3-c8b9-4ee7-864c-d0b590d3aa56",
    "eabc805a-bfcf-4460-b250-ac92135819f6", "f8369178-fafe-40c2-adc4-b9b08a125456",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededFile:
    """Example: NeededFile(url="https://…/poem.docx", path="<task id>/<uuid5 of the url>_poem.docx")"""

    url: str
    path: str  # relative to the cache

    @property
    def shipped(self) -> bool:
        return self.url.startswith(SHIPPED_PREFIX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """External needs of a task, for its setup and its evaluation."""

    files: tuple[NeededFile, ...]
    network: bool
    account: bool  # a Google account
    applications: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPart:
    """A setup step or an evaluator's getter. `location` starts its error messages."""

    kind: str
    settings: Json
    location: str

    def string(self, key: str) -> str:
        value = self.settings.get(key)
        if not isinstance(value, str):
            raise self.error(f"key {key!r} must be a string")
        return value

    def list_value(self, key: str) -> list[Any]:
        value = self.settings.get(key)
        if not isinstance(value, list):
            raise self.error(f"key {key!r} must be a list")
        return value

    def strings(self, key: str) -> list[str]:
        if not all(isinstance(value, str) for value in self.list_value(key)):
            raise self.error(f"key {key!r} must be a list of strings")
        return self.list_value(key)

    def string_or_strings(self, key: str) -> list[str]:
        """A list; a single string becomes a list of one, a missing key an empty list."""
        value = self.settings.get(key)
        return [] if value is None else [value] if isinstance(value, str) else self.strings(key)

    def error(self, reason: str) -> UserError:
        return UserError(f"{self.location}: {reason}")


def needs(task: Task) -> Needs:
    """Raises UserError, with the task id and the key, if desktop-env could not run the task."""
    if escapes_folder(task.id):
        raise UserError(f"task {task.id!r}: its id names its folder in the cache: use a plain name")
    parts = [*_steps(task), *_getters(task)]
    for part in parts:
        _check_paths(part)
    found: dict[str, NeededFile] = {}
    for url, name in (pair for part in parts for pair in _downloads(part)):
        found.setdefault(name, NeededFile(url=url, path=f"{task.id}/{name}"))
    names = (task.domain, task.snapshot, *task.related_apps)
    normalised = {name.lower().replace(" ", "_") for name in names}
    return Needs(
        files=tuple(found.values()),
        network=task.id in WEB_INSTRUCTION_TASKS or any(map(_needs_network, parts)),
        account=any(part.kind in ACCOUNT_PARTS for part in parts),
        applications=frozenset(APPLICATION_ALIASES.get(name, name) for name in normalised) & APPLICATIONS,
    )


def stage_files(task: Task, cache: Path, target_cache: Path) -> None:
    """Copies the task's files to a cache for desktop-env to change. Skips files missing from `cache`."""
    files = needs(task).files
    (target_cache / task.id).mkdir(parents=True, exist_ok=True)
    for file in files:
        target = target_cache / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.shipped:
            target.write_bytes(_shipped_bytes(file.url))
        elif (cache / file.path).is_file():
            shutil.copyfile(cache / file.path, target)


def _shipped_bytes(url: str) -> bytes:
    name = url.removeprefix(SHIPPED_PREFIX)
    file = resources("arpo") / "envs" / "osworld" / "tasks" / "files" / name
    if escapes_folder(name) or not file.is_file():
        raise UserError(f"{url}: no such file in the package")
    return file.read_bytes()


def _steps(task: Task) -> Iterator[TaskPart]:
    lists: tuple[tuple[str, Any], ...] = (
        ("config", task.config),
        ("evaluator: key 'postconfig'", task.evaluator.get("postconfig", [])),
    )
    for key, steps in lists:
        for number, step in enumerate(steps if isinstance(steps, Sequence) else [steps]):
            location = f"task {task.id!r}: {key}, step {number}"
            match step:
                case {"type": str(kind), "parameters": dict(parameters)}:
                    yield TaskPart(kind=kind, settings=parameters, location=f"{location} ({kind})")
                case _:
                    raise UserError(f"{location}: must be an object {{type, parameters}}")


def _getters(task: Task) -> Iterator[TaskPart]:
    location = f"task {task.id!r}: evaluator"
    func = task.evaluator.get("func")
    if not isinstance(func, str | list):
        raise UserError(f"{location}: key 'func' must be a name or a list of names")
    if func != "infeasible" and task.has_evaluator and not task.evaluator.get("result"):
        raise UserError(f"{location}: key 'result' is missing: add the getter to evaluate, {{type, …}}")
    for key in ("result", "expected"):
        value = task.evaluator.get(key) or []
        if value and isinstance(value, list) != isinstance(func, list):
            raise UserError(f"{location}: key {key!r} must be a list if and only if 'func' is a list")
        for getter in value if isinstance(value, list) else [value]:
            match getter:
                case {"type": str(kind)}:
                    yield TaskPart(kind=kind, settings=getter, location=f"{location}: key {key!r} ({kind})")
                case _ if getter or key == "result":
                    raise UserError(f"{location}: key {key!r}: must be an object {{type, …}}")


def _check_paths(part: TaskPart) -> None:
    """Rejects names leading out of the task's cache folder: desktop-env writes to them."""
    if part.kind == "upload_file":
        raise part.error("would read files of this machine: use a 'download' step")
    names = [
        *part.string_or_strings("dest"),
        *filter(None, [*part.string_or_strings("stdout"), *part.string_or_strings("stderr")]),
    ]
    if part.kind == "cache_file":
        names.append(part.string("path"))
    for name in names:
        if escapes_folder(name):
            raise part.error(f"{name!r} leads out of the task's own folder: use a plain name")


def _downloads(part: TaskPart) -> Iterator[tuple[str, str]]:
    """Pairs of URL and file name in the task's cache folder."""
    match part.kind:
        case "download":
            for entry in part.list_value("files"):
                match entry:
                    case {"url": str(url), "path": str(path)}:
                        yield url, f"{uuid5(NAMESPACE_URL, url)}_{path.rpartition('/')[2]}"
                    case _:
                        raise part.error("key 'files' must be a list of {url, path}")
        case "update_browse_history":
            yield EMPTY_HISTORY, "history_new.sqlite"
        case "cloud_file" if part.settings.get("multi"):
            urls, names = part.strings("path"), part.strings("dest")
            if len(urls) != len(names):
                raise part.error(f"{len(urls)} URLs in 'path', but {len(names)} names in 'dest'")
            yield from zip(urls, names, strict=True)
        case "cloud_file":
            yield part.string("path"), part.string("dest")


def _needs_network(part: TaskPart) -> bool:
    if part.kind == "chrome_open_tabs":
        return any(WEB_URL.match(url) for url in part.strings("urls_to_open"))
    command = part.settings.get("command", "")
    text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
    return part.kind in ACCOUNT_PARTS | NETWORK_GETTERS or DOWNLOAD_COMMAND.search(text) is not None
