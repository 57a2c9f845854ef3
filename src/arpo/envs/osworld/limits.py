"""Limits of one local desktop: memory, processes and CPU time.

Where the kernel has cgroup v2 with a parent group that this user may write to, each worker process with its
desktop gets a control group of its own. Everywhere, the guest sets resource limits for its own processes.

    cgroup v2          memory, processes and CPU cores of the whole desktop with its worker
    resource limits    processes of the whole desktop; private memory, CPU seconds and files of each process
"""

from __future__ import annotations

import errno
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from arpo.config.settings import OSWorldConfig

MEBIBYTE = 2**20
HOME_MEGABYTES = 512  # disk space of one local desktop: a file cannot be larger
MAX_PROCESSES = 2048  # of one local desktop, threads included
CPU_PERIOD = 100_000  # microseconds
CPU_SECONDS = 3600  # of one process, without a control group
CONTROLLERS = ("memory", "pids", "cpu")
NEEDED = {"memory", "pids"}
_REMOVE_SECONDS = 5.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    memory_megabytes: int
    processes: int  # threads count as processes
    cpus: float
    file_megabytes: int

    @classmethod
    def of(cls, config: OSWorldConfig) -> Limits:
        return cls(
            memory_megabytes=config.memory_megabytes,
            processes=MAX_PROCESSES,
            cpus=config.cpus,
            file_megabytes=HOME_MEGABYTES,
        )

    def of_group(self) -> dict[str, str]:
        """Content of the control group's files.

        >>> Limits(memory_megabytes=4096, processes=2048, cpus=1.5, file_megabytes=512).of_group()["cpu.max"]
        '150000 100000'
        """
        return {
            "memory.max": str(self.memory_megabytes * MEBIBYTE),
            "memory.swap.max": "0",
            "pids.max": str(self.processes),
            "cpu.max": f"{round(self.cpus * CPU_PERIOD)} {CPU_PERIOD}",
        }

    def of_guest(self) -> dict[str, int]:
        """Resource limits of the guest's processes, by the names of Python's `resource` module."""
        return self.of_worker() | {"RLIMIT_NPROC": self.processes, "RLIMIT_CPU": CPU_SECONDS}

    def of_worker(self) -> dict[str, int]:
        """Resource limits of the worker, which reads files of the guest."""
        return {
            "RLIMIT_DATA": self.memory_megabytes * MEBIBYTE,
            "RLIMIT_FSIZE": self.file_megabytes * MEBIBYTE,
            "RLIMIT_CORE": 0,
        }


class ControlGroups:
    """Control groups of one process, in a folder of its own: PARENT/NAME/episode-0, episode-1, …"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, name: str) -> ControlGroups | None:
        """None if there is no parent group in which this user may limit memory and processes."""
        mounts, membership = (Path("/proc/self", file).read_text() for file in ("mounts", "cgroup"))
        for parent in parent_candidates(mounts, membership):
            folder = parent / name
            try:
                folder.mkdir()
            except OSError:  # not permitted
                continue
            _pass_on_controllers(parent)
            _pass_on_controllers(folder)
            if NEEDED.issubset((folder / "cgroup.subtree_control").read_text().split()):
                return cls(folder)
            folder.rmdir()
        return None

    def add(self, name: str, pid: int, limits: Limits) -> Path:
        """Moves a process into a new group. Its later children belong to the group, too."""
        group = self.folder / name
        group.mkdir()
        for file, value in limits.of_group().items():
            if (group / file).exists():  # systemd does not delegate every controller to users
                (group / file).write_text(value)
        (group / "cgroup.procs").write_text(str(pid))
        return group


def remove_group(group: Path) -> None:
    """Kills all processes of the group and removes it. An ended process leaves its group after some time."""
    with suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + _REMOVE_SECONDS
    while time.monotonic() < deadline:
        try:
            group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                return
            time.sleep(_POLL_SECONDS)
        else:
            return


def parent_candidates(mounts: str, membership: str) -> list[Path]:
    """The control group of this process, then its ancestors. Empty without cgroup v2.

    `mounts` and `membership` are the contents of /proc/self/mounts and /proc/self/cgroup.

    >>> groups = parent_candidates("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0", "0::/app.slice/a.scope")
    >>> [str(group) for group in groups]
    ['/sys/fs/cgroup/app.slice/a.scope', '/sys/fs/cgroup/app.slice', '/sys/fs/cgroup']
    """
    folders = [line.split()[1] for line in mounts.splitlines() if line.split()[2] == "cgroup2"]
    paths = [line.removeprefix("0::/") for line in membership.splitlines() if line.startswith("0::/")]
    if not folders or not paths:
        return []
    own = Path(paths[0])
    return [Path(folders[0], path) for path in (own, *own.parents)]


def _pass_on_controllers(group: Path) -> None:
    """Enables the controllers for the group's children. The kernel refuses unknown controllers."""
    for name in CONTROLLERS:
        with suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{name}")
