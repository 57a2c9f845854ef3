"""What an OSWorld task needs from outside (files, the network, applications), and what of it is not here.

It is read from the task alone, without desktop-env. Files have the names under which desktop-env looks for
them in its cache before it downloads: <task id>/<uuid5 of the address>_<name> for what a set-up step puts on
the desktop, <task id>/<dest> for what a verdict is compared with.

Refused are a task that would write outside of its own folder in the cache, and one that would put files of
this machine on the desktop.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from arpo.config import Config, OSWorldConfig
from arpo.envs.task_files import escapes_folder
from arpo.errors import UserError
from arpo.types import Json, Task

SHIPPED = "arpo:"  # of the address of a file that is part of this package
LOCAL = "local"  # the provider whose desktops have no network and few applications
REMEDY = "`arpo osworld fetch-cache` fetches files, --osworld.network=on allows the network"

EMPTY_HISTORY = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)

APPLICATIONS = {
    "chrome", "gimp", "libreoffice_calc", "libreoffice_impress", "libreoffice_writer", "thunderbird", "vlc",
    "vs_code",
}  # fmt: skip
OTHER_NAMES = {
    "vscode": "vs_code",
    "browser": "chrome",
    "calc": "libreoffice_calc",
    "impress": "libreoffice_impress",
    "writer": "libreoffice_writer",
}
NOT_ON_THE_LOCAL_DESKTOP = {"vs_code": "VS Code", "thunderbird": "Thunderbird"}
# Tasks whose verdict on the local desktop is 1 whatever is done.
SOLVED_FROM_THE_START = {
    "99146c54-4f37-4ab8-9327-5f3291665e1e": "today's Chromium writes by itself what its verdict looks for",
    "937087b6-f668-4ba6-9110-60682ee33441": "VLC is the local desktop's only video player",
}

LIVE_STEPS = {"login", "googledrive"}
# They open a page, or read the address bar or the page that it leads to.
LIVE_GETTERS = {
    "active_tab_html_parse", "active_tab_info", "active_tab_url_parse", "active_url_from_accessTree",
    "googledrive_file", "gotoRecreationPage_and_get_html_content", "info_from_website",
    "macys_product_url_parse", "number_of_search_results", "page_info", "pdf_from_url", "url_dashPart",
    "url_path_parse",
}  # fmt: skip
WEB = re.compile(r"https?://(?!localhost|127\.)")
FETCHES = re.compile(
    r"\b(apt|apt-get|snap|pip3?|conda|npm)\b[^|;&]*\binstall\b|\b(wget|curl|git clone)\b[^|;&]*" + WEB.pattern
)

# OSWorld's tasks that send one to the web in their instruction alone: to install, to look up, to download.
ASKS_FOR_THE_WEB = {
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
    """NeededFile(url="https://…/poem.docx", path="<task id>/<uuid5 of the url>_poem.docx")"""

    url: str
    path: str  # under the cache

    @property
    def shipped(self) -> bool:
        return self.url.startswith(SHIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a task needs from outside, in set-up and verdict."""

    files: tuple[NeededFile, ...]
    network: bool
    applications: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A set-up step or a getter of a verdict: its kind, its settings, and how a refusal names it."""

    kind: str
    settings: Json
    place: str

    def text(self, key: str) -> str:
        value = self.settings.get(key)
        if not isinstance(value, str):
            raise self.refused(f"key {key!r} must be a string")
        return value

    def listed(self, key: str) -> list[Any]:
        value = self.settings.get(key)
        if not isinstance(value, list):
            raise self.refused(f"key {key!r} must be a list")
        return value

    def texts(self, key: str) -> list[str]:
        if not all(isinstance(value, str) for value in self.listed(key)):
            raise self.refused(f"key {key!r} must be a list of strings")
        return self.listed(key)

    def either(self, key: str) -> list[str]:
        """A text as a list of one."""
        value = self.settings.get(key)
        return [] if value is None else [value] if isinstance(value, str) else self.texts(key)

    def refused(self, reason: str) -> UserError:
        return UserError(f"{self.place}: {reason}")


def needs(task: Task) -> Needs:
    """What the task needs; what is wrong with it for desktop-env is a `UserError` with its id and its key."""
    if escapes_folder(task.id):
        raise UserError(f"task {task.id!r}: its id names its folder in the cache: use a plain name")
    steps, getters = list(_steps(task)), list(_getters(task))
    for part in (*steps, *getters):
        _refuse(part)
    found: dict[str, NeededFile] = {}
    for url, name in (pair for part in (*steps, *getters) for pair in _downloads(part)):
        found.setdefault(name, NeededFile(url=url, path=f"{task.id}/{name}"))
    names = (task.domain, task.snapshot, *task.related_apps)
    plain = {name.lower().replace(" ", "_") for name in names}
    return Needs(
        files=tuple(found.values()),
        network=task.id in ASKS_FOR_THE_WEB or any(map(_is_live, (*steps, *getters))),
        applications=frozenset(OTHER_NAMES.get(name, name) for name in plain) & APPLICATIONS,
    )


def missing(task: Task, settings: OSWorldConfig) -> str | None:
    """Why the task cannot run here, if so. Other providers' desktops have a network and all applications."""
    return _not_offered(task, settings) or _not_cached(task, settings)


def runnable(tasks: Iterable[Task], config: Config) -> tuple[tuple[Task, ...], list[tuple[Task, str]]]:
    """The tasks that can run, and the others with the reason. Hosts have caches of their own to look into."""
    if config.env.name != "osworld":
        return tuple(tasks), []
    why = _not_offered if config.env.hosts else missing
    reasons = [(task, why(task, config.osworld)) for task in tasks]
    kept = tuple(task for task, reason in reasons if reason is None)
    return kept, [(task, reason) for task, reason in reasons if reason is not None]


def allows_network(task: Task, setting: str) -> bool:
    """What osworld.network says of the task: "on", "off", or a file that has its id on a line."""
    if setting in ("on", "off"):
        return setting == "on"
    try:
        lines = Path(setting).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"osworld.network: {setting!r}: is not on, off or a file of ids: {error}") from error
    return task.id in (line.partition("#")[0].strip() for line in lines)


def stage(task: Task, cache: Path, into: Path) -> None:
    """Copy what is there of the task's files to `into`: a cache that desktop-env may write to."""
    wanted = needs(task).files
    (into / task.id).mkdir(parents=True, exist_ok=True)
    for file in wanted:
        target = into / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.shipped:
            target.write_bytes(_shipped_bytes(file.url))
        elif (cache / file.path).is_file():
            shutil.copyfile(cache / file.path, target)


def _shipped_bytes(url: str) -> bytes:
    name = url.removeprefix(SHIPPED)
    file = resources("arpo") / "envs" / "osworld" / "tasks" / "files" / name
    if escapes_folder(name) or not file.is_file():
        raise UserError(f"{url}: no such file is shipped")
    return file.read_bytes()


def _not_offered(task: Task, settings: OSWorldConfig) -> str | None:
    need = needs(task)
    if settings.provider != LOCAL:
        return None
    if task.id in SOLVED_FROM_THE_START:
        return f"would be solved from the start: {SOLVED_FROM_THE_START[task.id]}"
    for application, title in NOT_ON_THE_LOCAL_DESKTOP.items():
        if application in need.applications:
            return f"needs {title}, which the local desktop does not have"
    if need.network and not allows_network(task, settings.network):
        return "needs the network, which is off (osworld.network)"
    return None


def _not_cached(task: Task, settings: OSWorldConfig) -> str | None:
    if settings.provider != LOCAL:
        return None
    for file in needs(task).files:
        if not file.shipped and not (Path(settings.cache) / file.path).is_file():
            return f"file {file.path} ({file.url}) is not in the cache {settings.cache}"
    return None


def _steps(task: Task) -> Iterator[Part]:
    lists: tuple[tuple[str, Any], ...] = (
        ("config", task.config),
        ("evaluator: key 'postconfig'", task.evaluator.get("postconfig", [])),
    )
    for key, steps in lists:
        for number, step in enumerate(steps if isinstance(steps, Sequence) else [steps]):
            place = f"task {task.id!r}: {key}, step {number}"
            match step:
                case {"type": str(kind), "parameters": dict(parameters)}:
                    yield Part(kind=kind, settings=parameters, place=f"{place} ({kind})")
                case _:
                    raise UserError(f"{place}: must be an object {{type, parameters}}")


def _getters(task: Task) -> Iterator[Part]:
    place = f"task {task.id!r}: evaluator"
    func = task.evaluator.get("func")
    if not isinstance(func, str | list):
        raise UserError(f"{place}: key 'func' must be a name or a list of names")
    if func != "infeasible" and not task.evaluator.get("result"):
        raise UserError(f"{place}: key 'result' is missing: say what is to be judged, {{type, …}}")
    for key in ("result", "expected"):
        value = task.evaluator.get(key) or []
        if value and isinstance(value, list) != isinstance(func, list):
            raise UserError(f"{place}: key {key!r} must be a list where 'func' is one, and only there")
        for getter in value if isinstance(value, list) else [value]:
            match getter:
                case {"type": str(kind)}:
                    yield Part(kind=kind, settings=getter, place=f"{place}: key {key!r} ({kind})")
                case _ if getter or key == "result":
                    raise UserError(f"{place}: key {key!r}: must be an object {{type, …}}")


def _refuse(part: Part) -> None:
    """Desktop-env joins these names to the task's folder in the cache and writes there."""
    if part.kind == "upload_file":
        raise part.refused("would read files of this machine: give them as a 'download' step")
    written = [*part.either("dest"), *filter(None, [*part.either("stdout"), *part.either("stderr")])]
    if part.kind == "cache_file":
        written.append(part.text("path"))
    for name in written:
        if escapes_folder(name):
            raise part.refused(f"{name!r} leads out of the task's own folder: use a plain name")


def _downloads(part: Part) -> Iterator[tuple[str, str]]:
    """Address, and name in the task's folder of the cache."""
    match part.kind:
        case "download":
            for entry in part.listed("files"):
                match entry:
                    case {"url": str(url), "path": str(path)}:
                        yield url, f"{uuid5(NAMESPACE_URL, url)}_{path.rpartition('/')[2]}"
                    case _:
                        raise part.refused("key 'files' must be a list of {url, path}")
        case "update_browse_history":
            yield EMPTY_HISTORY, "history_new.sqlite"
        case "cloud_file" if part.settings.get("multi"):
            urls, names = part.texts("path"), part.texts("dest")
            if len(urls) != len(names):
                raise part.refused(f"{len(urls)} addresses in 'path', but {len(names)} names in 'dest'")
            yield from zip(urls, names, strict=True)
        case "cloud_file":
            yield part.text("path"), part.text("dest")


def _is_live(part: Part) -> bool:
    if part.kind == "chrome_open_tabs":
        return any(WEB.match(url) for url in part.texts("urls_to_open"))
    command = part.settings.get("command", "")
    text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
    return part.kind in LIVE_STEPS | LIVE_GETTERS or FETCHES.search(text) is not None
