"""Whether an OSWorld task can run on this machine, and the reason and the remedy if it cannot."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from arpo.config import Config, OSWorldConfig
from arpo.envs.osworld.desktop_env_names import names_for, why_refused
from arpo.envs.osworld.needs import LOCAL, NeededFile, Needs, needs
from arpo.errors import UserError
from arpo.types import Task

NOT_ON_LIGHT_DESKTOPS = {"vs_code": "VS Code"}  # Debian has no package of it
# These tasks score 1 on a light desktop even if nothing is done.
ALWAYS_SOLVED = {
    "99146c54-4f37-4ab8-9327-5f3291665e1e": "current Chromium writes the expected setting by itself",
    "937087b6-f668-4ba6-9110-60682ee33441": "VLC is the light desktop's only video player",
}
SANDBOX_PROGRAMS = ("bwrap",)
NETWORK_PROGRAMS = ("slirp4netns", "ip")  # of a sandbox with network
# Programs of the applications on this machine, any of which will do. Light desktops see no other paths.
PROGRAMS = {
    "chrome": ("/opt/google/chrome/chrome", "/usr/lib/chromium/chromium"),
    "gimp": ("/usr/bin/gimp",),
    "libreoffice_calc": ("/usr/bin/localc",),
    "libreoffice_impress": ("/usr/bin/loimpress",),
    "libreoffice_writer": ("/usr/bin/lowriter",),
    "thunderbird": ("/usr/bin/thunderbird",),
    "vlc": ("/usr/bin/vlc",),
}
_VIRTUAL_MACHINE = 'run it on a virtual machine, for example with osworld.provider = "docker"'


def why_not_runnable(task: Task, settings: OSWorldConfig) -> str | None:
    """The reason why this machine cannot run the task, with a remedy; None if it can.

    Virtual machines can run every task. Names unknown to desktop-env are not checked.
    """
    return _not_supported(task, settings) or _not_installed(task, settings) or _not_cached(task, settings)


def split_runnable(tasks: Sequence[Task], config: Config) -> tuple[Sequence[Task], list[tuple[Task, str]]]:
    """The runnable tasks, and the others with the reason. Programs and caches of hosts are not checked."""
    if config.env.name != "osworld":
        return tasks, []
    known = names_for(config.env, config.osworld)
    reason_for = _not_supported if config.env.hosts else why_not_runnable
    reasons = [(task, why_refused(task, known) or reason_for(task, config.osworld)) for task in tasks]
    kept = tuple(task for task, reason in reasons if reason is None)
    return kept, [(task, reason) for task, reason in reasons if reason is not None]


def allows_network(task: Task, setting: str) -> bool:
    """Whether the task may use the network. `setting` is "on", "off" or a file with one task id per line."""
    if setting in ("on", "off"):
        return setting == "on"
    try:
        lines = Path(setting).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"osworld.network = {setting!r}: use on, off or a file of task ids: {error}"
        ) from error
    return task.id in (line.partition("#")[0].strip() for line in lines)


def uncached(need: Needs, cache: str) -> list[NeededFile]:
    """The needed files that are neither in the package nor in the cache."""
    return [file for file in need.files if not file.shipped and not (Path(cache) / file.path).is_file()]


def _not_supported(task: Task, settings: OSWorldConfig) -> str | None:
    need = needs(task)
    if settings.provider != LOCAL:
        return None
    if task.id in ALWAYS_SOLVED:
        return f"would be solved from the start: {ALWAYS_SOLVED[task.id]}"
    for application, title in NOT_ON_LIGHT_DESKTOPS.items():
        if application in need.applications:
            return f"needs {title}, which light desktops do not have: {_VIRTUAL_MACHINE}"
    if need.account:
        return f"needs a Google account, which light desktops do not have: {_VIRTUAL_MACHINE}"
    if need.network and not allows_network(task, settings.network):
        return "needs the network, which is off: --osworld.network on allows it"
    return None


def _not_installed(task: Task, settings: OSWorldConfig) -> str | None:
    if settings.provider != LOCAL:
        return None
    network = NETWORK_PROGRAMS if allows_network(task, settings.network) else ()
    missing = [name for name in (*SANDBOX_PROGRAMS, *network) if shutil.which(name) is None]
    for application in sorted(needs(task).applications & PROGRAMS.keys()):
        if not any(Path(program).is_file() for program in PROGRAMS[application]):
            missing.append(PROGRAMS[application][-1])
    if not missing:
        return None
    return f"needs {' and '.join(missing)}, which this machine does not have: run `arpo osworld install`"


def _not_cached(task: Task, settings: OSWorldConfig) -> str | None:
    if settings.provider != LOCAL:
        return None
    for file in uncached(needs(task), settings.cache):
        return (
            f"file {file.path} ({file.url}) is not in the cache {settings.cache}: "
            "`arpo osworld fetch-cache` downloads it"
        )
    return None
