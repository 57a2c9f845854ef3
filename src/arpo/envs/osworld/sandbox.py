"""The light desktop: a bubblewrap sandbox with its own users, processes, network, host name and files.

- `boot` starts the sandbox and returns when its server is ready. `close` kills every process and removes all
  files.
- The guest writes only to in-memory file systems of limited size.
- The guest sees the host's programs and some of their settings, read-only.
- The host binds the listening sockets on its loopback interface and passes them in.
- The guest has no network by default. `network=True` adds a user-mode network without access to the host's
  loopback.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo.errors import EnvError, EnvTimeout, UserError

GUEST = Path(__file__).parent / "guest"
GUEST_PACKAGES = "ARPO_GUEST_PACKAGES"  # environment variable: folder with the guest's Python packages
CHROME = Path("/opt/google/chrome")
CHROMIUM = Path("/usr/lib/chromium")
LOG_BYTES = 64 * 1024
MEBIBYTE = 2**20
_JOIN_SECONDS = 5.0
_GET_USER_NAMESPACE = 0xB701  # ioctl NS_GET_USERNS: the user namespace that owns a namespace

# Files of /etc that programs read. None of them contains users, hosts or secrets.
_ETC_FROM_HOST = (
    "alternatives", "bash.bashrc", "ca-certificates", "chromium", "chromium.d", "dbus-1",
    "debian_version", "fonts", "gimp", "glvnd", "gtk-2.0", "gtk-3.0", "gtk-4.0", "host.conf",
    "ImageMagick-6", "inputrc", "issue", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libreoffice",
    "locale.alias", "lsb-release", "magic", "magic.mime", "mailcap", "mime.types", "nsswitch.conf",
    "openal", "os-release", "papersize", "profile", "protocols", "pulse", "python3", "python3.11",
    "python3.12", "python3.13", "services", "shells", "skel", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "vdpau_wrapper.cfg", "vulkan", "X11", "xdg", "xml",
)  # fmt: skip
_ETC_FROM_GUEST = ("passwd", "group", "hosts", "hostname", "machine-id")
_VAR_FROM_HOST = (
    "/var/cache/fontconfig",
    "/var/lib/dictionaries-common",
    "/var/lib/libreoffice",
    "/var/spool/libreoffice",
)
_ENVIRONMENT = {  # of the guest's server; `guest/session.py` sets the environment of the desktop
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": "/opt/arpo",
    "MALLOC_ARENA_MAX": "2",  # many threads allocate screenshots: return their memory to the system
    "MALLOC_MMAP_THRESHOLD_": "1000000",
}
_GUEST_COMMAND = ("/usr/bin/python3", "-P", "-m", "arpo.envs.osworld.guest")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    width: int
    height: int
    home_megabytes: int  # limit for each of the home folder, /tmp and /dev/shm
    network: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Ports on the host's loopback interface."""

    server: int
    chromium: int
    vlc: int


class Sandbox:
    """Single use: boot once. The guest dies with the thread that called `boot`."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.token = secrets.token_urlsafe(24)
        self.ports = Ports(server=0, chromium=0, vlc=0)
        self._cleanup = contextlib.ExitStack()

    def boot(self, seconds: float) -> None:
        """Raises `EnvTimeout` after `seconds`, `EnvError` on failure, `UserError` for missing packages."""
        deadline = time.monotonic() + seconds
        with contextlib.ExitStack() as sockets:
            listening = [sockets.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
            server, chromium, vlc = (each.getsockname()[1] for each in listening)
            self.ports = Ports(server=server, chromium=chromium, vlc=vlc)
            try:
                self._start([each.fileno() for each in listening], deadline)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        self._cleanup.close()

    def _start(self, sockets: Sequence[int], deadline: float) -> None:
        with contextlib.ExitStack() as after_spawn:
            log, log_guest = self._pipe(after_spawn)
            ready, ready_guest = self._pipe(after_spawn)
            info, info_guest = self._pipe(after_spawn)
            arguments = _pipe_with(_bwrap_arguments(self.settings, info_guest))
            after_spawn.callback(os.close, arguments)
            bwrap = _spawn(arguments, log_guest, [*sockets, ready_guest, info_guest])
        guest_log = _Log(log)
        self._cleanup.callback(guest_log.join)
        self._cleanup.callback(_kill, bwrap)
        _send_settings(bwrap, self._guest_settings(sockets, ready_guest))
        init_pid = _read_init_pid(info)
        if init_pid:
            self._cleanup.callback(_kill_sandbox, os.pidfd_open(init_pid))
        _wait_until_ready(ready, deadline, guest_log)
        if init_pid and self.settings.network:
            self._start_network(init_pid, deadline)

    def _start_network(self, init_pid: int, deadline: float) -> None:
        """Starts slirp4netns for the sandbox's network namespace. It exits when its exit pipe closes."""
        with contextlib.ExitStack() as after_spawn:
            ready, ready_slirp = self._pipe(after_spawn)
            exit_slirp, exit_own = os.pipe()
            after_spawn.callback(os.close, exit_slirp)
            self._cleanup.callback(os.close, exit_own)
            network = os.open(f"/proc/{init_pid}/ns/net", os.O_RDONLY)
            after_spawn.callback(os.close, network)
            owner = fcntl.ioctl(network, _GET_USER_NAMESPACE)
            after_spawn.callback(os.close, owner)
            pipes = (f"--ready-fd={ready_slirp}", f"--exit-fd={exit_slirp}")
            namespaces = (
                f"--userns-path=/proc/self/fd/{owner}",
                "--netns-type=path",
                f"/proc/self/fd/{network}",
            )
            slirp = subprocess.Popen(
                ["slirp4netns", "--configure", "--disable-host-loopback", *pipes, *namespaces, "tap0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[ready_slirp, exit_slirp, network, owner],
            )
        self._cleanup.callback(_kill, slirp)
        if not _is_readable(ready, deadline) or not os.read(ready, 1):
            raise EnvError("start", "slirp4netns did not start the guest's network; it needs /dev/net/tun")

    def _pipe(self, after_spawn: contextlib.ExitStack) -> tuple[int, int]:
        """(read end, write end). `close` closes the read end; `after_spawn` closes the write end."""
        own, guest = os.pipe()
        self._cleanup.callback(os.close, own)
        after_spawn.callback(os.close, guest)
        return own, guest

    def _guest_settings(self, sockets: Sequence[int], ready: int) -> dict[str, object]:
        server, chromium, vlc = sockets
        return {
            "width": self.settings.width,
            "height": self.settings.height,
            "token": self.token,
            "server": server,
            "relays": {"9222": chromium, "8080": vlc},
            "ready": ready,
        }


class _Log:
    """Reads the guest's output in a thread and keeps the last `LOG_BYTES`."""

    def __init__(self, pipe: int) -> None:
        self._tail = bytearray()
        self._pipe = pipe
        self._thread = threading.Thread(target=self._read, name="guest-log", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._pipe, LOG_BYTES):
            self._tail = (self._tail + chunk)[-LOG_BYTES:]

    def tail(self) -> str:
        text = self._tail.decode("utf-8", "replace").strip()
        return f"; last output: {text[-2000:]}" if text else ""

    def join(self) -> None:
        self._thread.join(_JOIN_SECONDS)


def guest_packages() -> Path:
    """The folder with the guest's Python packages, which `make osworld` installs."""
    return Path(os.environ.get(GUEST_PACKAGES) or Path(sys.prefix) / "guest-packages")


def prepared_home() -> Path:
    """The folder with the files of the applications' first start (`prepare_home.py`). It may be missing."""
    return guest_packages().with_name("guest-home")


def _spawn(arguments: int, log: int, inherited: Sequence[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ["bwrap", "--args", str(arguments), *_GUEST_COMMAND],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[*inherited, arguments],
        )
    except OSError as error:
        raise EnvError("start", f"could not start bubblewrap: {error}") from error


def _pipe_with(words: Sequence[str]) -> int:
    """A pipe with bubblewrap's arguments. Arguments in a pipe do not appear in the process list."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as pipe:
        pipe.write(b"".join(word.encode() + b"\0" for word in words))
    return read_end


def _send_settings(bwrap: subprocess.Popen[bytes], settings: dict[str, object]) -> None:
    """Sends the settings through a pipe: the token must not appear in a process list or environment."""
    assert bwrap.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # bubblewrap has exited; `_wait_until_ready` reports it
        bwrap.stdin.write(json.dumps(settings).encode() + b"\n")
        bwrap.stdin.close()


def _read_init_pid(info: int) -> int | None:
    """The host's process id of the sandbox's first process. None if bubblewrap exited early."""
    text = b""
    while chunk := os.read(info, 4096):
        text += chunk
        if text.rstrip().endswith(b"}"):
            return int(json.loads(text)["child-pid"])
    return None


def _wait_until_ready(ready: int, deadline: float, guest_log: _Log) -> None:
    if not _is_readable(ready, deadline):
        raise EnvTimeout("start", f"the guest did not start in time{guest_log.tail()}")
    if not os.read(ready, 1):
        guest_log.join()
        raise EnvError("start", f"the guest exited during startup{guest_log.tail()}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _kill_sandbox(pidfd: int) -> None:
    """Kills the sandbox's first process. The kernel kills all others before this one exits."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    _is_readable(pidfd, math.inf)
    os.close(pidfd)


def _is_readable(descriptor: int, deadline: float) -> bool:
    """Waits for data or the end of the stream. False after the deadline (monotonic; may be infinite)."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic()) * 1000
    return bool(poll.poll(left))


def _bwrap_arguments(settings: SandboxSettings, info: int) -> list[str]:
    """Raises `UserError` if a program or the guest's packages are missing."""
    for program in ("bwrap", "slirp4netns") if settings.network else ("bwrap",):
        if shutil.which(program) is None:
            package = {"bwrap": "bubblewrap"}.get(program, program)
            raise UserError(
                f"{program} is not installed; run `make osworld` to install it (Debian package {package})"
            )
    if not (packages := guest_packages()).is_dir():
        raise UserError(
            f"{packages}: no such folder; run `make osworld` to create it, or set {GUEST_PACKAGES}"
        )
    words = ["--die-with-parent", "--new-session", "--unshare-all", "--info-fd", str(info)]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "user-virtual-machine", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        words += ["--setenv", name, value]
    for mount in (*_host_mounts(), *_guest_mounts(settings, packages)):
        words += mount
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/home/user"]


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


def _guest_mounts(settings: SandboxSettings, packages: Path) -> Iterator[tuple[str, ...]]:
    home_bytes = settings.home_megabytes * MEBIBYTE
    framebuffer_bytes = settings.width * settings.height * 8
    yield ("--proc", "/proc")
    yield ("--dev", "/dev")
    for size, folder in (
        (home_bytes, "/home/user"),
        (home_bytes, "/tmp"),
        (home_bytes, "/dev/shm"),
        (16 * MEBIBYTE, "/var/tmp"),
        (16 * MEBIBYTE, "/usr/local"),
        (64 * MEBIBYTE + framebuffer_bytes, "/run"),
    ):
        yield ("--size", str(size), "--tmpfs", folder)
    yield ("--chmod", "1777", "/tmp")
    yield ("--perms", "0700", "--dir", "/run/user/1000")
    yield ("--symlink", "/run", "/var/run")
    yield ("--symlink", "/run/localtime", "/etc/localtime")
    for name in (*_ETC_FROM_GUEST, *(["resolv.conf"] if settings.network else [])):
        yield ("--ro-bind", str(GUEST / "etc" / name), f"/etc/{name}")
    yield ("--ro-bind", str(GUEST), "/opt/arpo/arpo/envs/osworld/guest")
    yield ("--ro-bind", str(packages), "/opt/arpo/packages")
    yield ("--ro-bind-try", str(prepared_home()), "/opt/arpo/home")
