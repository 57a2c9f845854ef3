"""Arguments of bubblewrap: the files, devices, environment variables and system calls of the guest.

Everything is read-only except the guest's in-memory file systems. When this process runs as root, the sandbox
belongs to the user `nobody`. A guest of root could otherwise write kernel settings in /proc/sys: its files
belong to root, and the kernel compares only user ids.
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arpo.envs.osworld.cleanup import delete_at_exit
from arpo.envs.osworld.limits import MEBIBYTE
from arpo.envs.osworld.seccomp import filter_program
from arpo.errors import UserError

GUEST = Path(__file__).parent / "guest"
CHROME = Path("/opt/google/chrome")
CHROMIUM = Path("/usr/lib/chromium")
NOBODY = 65534
# Bubblewrap is the guest's process 1: the guest can read it.
BWRAP_ENVIRONMENT = {"PATH": "/usr/bin:/bin:/usr/sbin"}

# Files of /etc for programs. None of them contains users, hosts or secrets.
_ETC_FROM_HOST = (
    "alternatives", "bash.bashrc", "ca-certificates", "chromium", "chromium.d", "dbus-1",
    "debian_version", "fonts", "gimp", "glvnd", "gtk-2.0", "gtk-3.0", "gtk-4.0", "host.conf",
    "ImageMagick-6", "inputrc", "issue", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libreoffice",
    "locale.alias", "lsb-release", "magic", "magic.mime", "mailcap", "mime.types", "nsswitch.conf",
    "openal", "os-release", "papersize", "profile", "protocols", "pulse", "python3", "python3.11",
    "python3.12", "python3.13", "services", "shells", "skel", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "vdpau_wrapper.cfg", "vulkan", "X11", "xdg", "xml",
)  # fmt: skip
_ETC_FROM_GUEST = ("passwd", "group", "hosts", "hostname", "machine-id", "thunderbird")
_VAR_FROM_HOST = (
    "/var/cache/fontconfig",
    "/var/lib/dictionaries-common",
    "/var/lib/libreoffice",
    "/var/spool/libreoffice",
)
# Files of /proc about the kernel and its keys, and folders of /proc about the hardware.
_PROC_HIDDEN = (
    "cmdline", "config.gz", "interrupts", "kallsyms", "kcore", "key-users", "keys", "kmsg", "latency_stats",
    "modules", "sched_debug", "sysrq-trigger", "timer_list", "timer_stats",
    "acpi", "asound", "bus", "driver", "fs", "irq", "pressure", "scsi",
)  # fmt: skip
_ENVIRONMENT = {  # of the guest's server; `guest/session.py` sets the environment of the desktop
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": "/opt/arpo:/opt/arpo/packages",
    "MALLOC_ARENA_MAX": "2",  # many threads allocate screenshots: return their memory to the system
    "MALLOC_MMAP_THRESHOLD_": "1000000",
}
_PROGRAM_LINKS = {
    "python": "/usr/bin/python3",
    "chromium": "google-chrome",
    "chromium-browser": "google-chrome",
    "google-chrome-stable": "google-chrome",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestFiles:
    """Folders of the host, visible to the guest under /opt/arpo. The prepared home may be missing."""

    guest: Path
    packages: Path
    home: Path


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of bubblewrap, and the descriptors to which they refer. The caller closes the descriptors."""

    words: list[str] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()


def bwrap_arguments(files: GuestFiles, *, home_bytes: int, run_bytes: int, network: bool) -> Arguments:
    """`home_bytes` limits each of the home folder, /tmp and /dev/shm; `run_bytes` limits /run.

    Raises UserError if a part is missing or not readable.
    """
    visible = readable_by_guest(files)
    arguments = _isolated(_ENVIRONMENT, _guest_mounts(visible, home_bytes, run_bytes, network))
    words, descriptors = arguments.words, arguments.descriptors
    for program in sorted((GUEST / "bin").iterdir()):
        descriptors.append(os.open(program, os.O_RDONLY))
        words += ["--perms", "0755", "--file", str(descriptors[-1]), f"/usr/local/bin/{program.name}"]
    for name, target in _PROGRAM_LINKS.items():
        words += ["--symlink", target, f"/usr/local/bin/{name}"]
    _complete(arguments, read_only=("/usr/local", "/dev", "/"))
    return arguments


def browser_arguments(program: Path, downloads: Path, visible_as: str, *, home_bytes: int) -> Arguments:
    """For a browser alone, without a desktop and a network. It writes to the host's folder `downloads`.

    `program` is the folder of the browser. `home_bytes` limits each of the home folder, /tmp and /dev/shm.
    """
    arguments = _isolated(
        {"PATH": "/usr/bin:/bin", "HOME": "/home/user"},
        (
            *_memory_mounts(home_bytes),
            ("--size", str(16 * MEBIBYTE), "--tmpfs", "/run"),
            ("--ro-bind", str(program), str(program)),
            ("--bind", str(downloads), visible_as),
        ),
    )
    _complete(arguments, read_only=("/dev", "/"))
    return arguments


def _isolated(environment: Mapping[str, str], mounts: Iterable[tuple[str, ...]]) -> Arguments:
    words = ["--die-with-parent", "--new-session", "--unshare-all", "--unshare-user", "--disable-userns"]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "user-virtual-machine", "--clearenv"]
    for name, value in environment.items():
        words += ["--setenv", name, value]
    for mount in (*_host_mounts(), *_kernel_mounts(), *mounts):
        words += mount
    return Arguments(words)


def _complete(arguments: Arguments, read_only: Sequence[str]) -> None:
    """Close the folders that only this process fills, and add the filter of system calls."""
    for folder in read_only:
        arguments.words.extend(("--remount-ro", folder))
    arguments.descriptors.append(_memory_file(filter_program()))
    arguments.words.extend(("--seccomp", str(arguments.descriptors[-1]), "--chdir", "/home/user"))


def sandbox_user() -> dict[str, Any]:
    """Arguments for `subprocess.Popen`: the user of the sandbox's processes."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}


def readable_by_guest(files: GuestFiles) -> GuestFiles:
    """The same files, readable by the user of the sandbox.

    As root this is a copy, made once: the project may lie in a private folder such as /root.
    """
    return _copy(files) if os.geteuid() == 0 else files


@functools.cache
def _copy(files: GuestFiles) -> GuestFiles:
    folder = Path(tempfile.mkdtemp(prefix="arpo-guest-"))
    delete_at_exit(folder)
    for parent in folder.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise UserError(
                f"{parent}: only root can enter this folder, but the desktops run as the user nobody; "
                "set TMPDIR to a folder that all users can enter, such as /tmp"
            )
    copy = GuestFiles(guest=folder / "guest", packages=folder / "packages", home=folder / "home")
    shutil.copytree(files.guest, copy.guest)
    shutil.copytree(files.packages, copy.packages)
    if files.home.is_dir():
        shutil.copytree(files.home, copy.home, symlinks=True)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("arpo")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _host_mounts() -> Iterator[tuple[str, ...]]:
    yield ("--ro-bind", "/usr", "/usr")
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield ("--symlink", os.readlink(path), str(path))
        elif path.is_dir():
            yield ("--ro-bind", str(path), str(path))
    yield from _browser_mounts()
    for path_name in (*(f"/etc/{name}" for name in _ETC_FROM_HOST), *_VAR_FROM_HOST):
        yield ("--ro-bind-try", path_name, path_name)


def _browser_mounts() -> Iterator[tuple[str, ...]]:
    """Chrome's folder, or Chromium under Chrome's path: the process must be named `chrome`."""
    if CHROME.is_dir():
        yield ("--ro-bind", str(CHROME), str(CHROME))
    elif CHROMIUM.is_dir():
        for path in sorted(CHROMIUM.iterdir()):
            yield ("--symlink", str(path), str(CHROME / path.name))
        yield ("--ro-bind", str(CHROMIUM / "chromium"), str(CHROME / "chrome"))


def _kernel_mounts() -> Iterator[tuple[str, ...]]:
    yield ("--proc", "/proc")
    yield ("--ro-bind", "/proc/sys", "/proc/sys")
    for path in (Path("/proc", name) for name in _PROC_HIDDEN):
        if path.is_dir():
            yield ("--tmpfs", str(path), "--remount-ro", str(path))
        elif path.exists():
            yield ("--ro-bind", "/dev/null", str(path))
    yield ("--dev", "/dev")


def _memory_mounts(size: int) -> Iterator[tuple[str, ...]]:
    for folder in ("/home/user", "/tmp", "/dev/shm"):
        yield ("--size", str(size), "--tmpfs", folder)
    yield ("--chmod", "1777", "/tmp")


def _guest_mounts(
    files: GuestFiles, home_bytes: int, run_bytes: int, network: bool
) -> Iterator[tuple[str, ...]]:
    yield from _memory_mounts(home_bytes)
    for size, folder in ((16 * MEBIBYTE, "/var/tmp"), (16 * MEBIBYTE, "/usr/local"), (run_bytes, "/run")):
        yield ("--size", str(size), "--tmpfs", folder)
    yield ("--perms", "0700", "--dir", "/run/user/1000")
    yield ("--symlink", "/run", "/var/run")
    yield ("--symlink", "/run/localtime", "/etc/localtime")
    for name in (*_ETC_FROM_GUEST, *(["resolv.conf"] if network else [])):
        yield ("--ro-bind", str(files.guest / "etc" / name), f"/etc/{name}")
    yield ("--ro-bind", str(files.guest / "applications"), "/usr/local/share/applications")
    yield ("--ro-bind", str(files.guest), "/opt/arpo/arpo/envs/osworld/guest")
    yield ("--ro-bind", str(files.packages), "/opt/arpo/packages")
    yield ("--ro-bind-try", str(files.home), "/opt/arpo/home")
