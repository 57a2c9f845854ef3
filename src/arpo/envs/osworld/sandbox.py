"""One light desktop: a bubblewrap sandbox with its own users, processes, network, host name and files.

`boot` starts it and returns when its server answers; `close` ends it, and when it returns no process and no
file of it is left. Everything that the guest writes lives in memory file systems of limited size that vanish
with it. Of the host it sees programs and a chosen part of their settings, read-only. What listens outside is
bound here, on the loopback, and handed in as open sockets. There is no network inside, unless it is asked
for: then it is a user-mode one that reaches out, but not to this machine's loopback.
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
GUEST_PACKAGES = "ARPO_GUEST_PACKAGES"  # environment variable: the folder that holds pyautogui for the guest
CHROME = Path("/opt/google/chrome")
CHROMIUM = Path("/usr/lib/chromium")
LOG_BYTES = 64 * 1024
MEBIBYTE = 2**20
_JOIN_SECONDS = 5.0
_GET_OWNER = 0xB701  # ioctl of a namespace: the user namespace that owns it

# What programs read of /etc. Nothing that names people, hosts or secrets.
_SETTINGS = (
    "alternatives", "bash.bashrc", "ca-certificates", "chromium", "chromium.d", "dbus-1",
    "debian_version", "fonts", "gimp", "glvnd", "gtk-2.0", "gtk-3.0", "gtk-4.0", "host.conf",
    "ImageMagick-6", "inputrc", "issue", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libreoffice",
    "locale.alias", "lsb-release", "magic", "magic.mime", "mailcap", "mime.types", "nsswitch.conf",
    "openal", "os-release", "papersize", "profile", "protocols", "pulse", "python3", "python3.11",
    "python3.12", "python3.13", "services", "shells", "skel", "ssl/certs", "ssl/openssl.cnf",
    "terminfo", "vdpau_wrapper.cfg", "vulkan", "X11", "xdg", "xml",
)  # fmt: skip
_OWN_SETTINGS = ("passwd", "group", "hosts", "hostname", "machine-id")
_MORE_OF_THE_HOST = (
    "/var/cache/fontconfig",
    "/var/lib/dictionaries-common",
    "/var/lib/libreoffice",
    "/var/spool/libreoffice",
)
_ENVIRONMENT = {  # of the guest's server; the session that it starts has one of its own
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "PYTHONPATH": "/opt/arpo",
    "MALLOC_ARENA_MAX": "2",  # pictures come and go in many threads: give their memory back
    "MALLOC_MMAP_THRESHOLD_": "1000000",
}
_MAIN = ("/usr/bin/python3", "-P", "-m", "arpo.envs.osworld.guest")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    width: int
    height: int
    home_megabytes: int  # for each of the home, /tmp and shared memory
    network: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Loopback ports on the outside."""

    server: int
    chromium: int
    vlc: int


class Sandbox:
    """Single use. The guest ends with the thread that booted it."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self.token = secrets.token_urlsafe(24)
        self.ports = Ports(server=0, chromium=0, vlc=0)
        self._ends = contextlib.ExitStack()

    def boot(self, seconds: float) -> None:
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
        self._ends.close()

    def _start(self, sockets: Sequence[int], deadline: float) -> None:
        with contextlib.ExitStack() as guest_ends:
            log, log_guest = self._pipe(guest_ends)
            ready, ready_guest = self._pipe(guest_ends)
            info, info_guest = self._pipe(guest_ends)
            arguments = _readable(_arguments(self.settings, info_guest))
            guest_ends.callback(os.close, arguments)
            bwrap = _spawn(arguments, log_guest, [*sockets, ready_guest, info_guest])
        words = _Log(log)
        self._ends.callback(words.join)
        self._ends.callback(_end, bwrap)
        _tell(bwrap, self._settings_for_guest(sockets, ready_guest))
        first = _first_process(info)
        if first:
            self._ends.callback(_end_all, os.pidfd_open(first))
        _wait_until_ready(ready, deadline, words)
        if first and self.settings.network:
            self._start_network(first, deadline)

    def _start_network(self, first: int, deadline: float) -> None:
        """A user-mode network for the sandbox's namespace. It ends with us: it watches a pipe of ours."""
        with contextlib.ExitStack() as its_ends:
            up, up_network = self._pipe(its_ends)
            gone, gone_own = os.pipe()
            its_ends.callback(os.close, gone)
            self._ends.callback(os.close, gone_own)
            network = os.open(f"/proc/{first}/ns/net", os.O_RDONLY)
            its_ends.callback(os.close, network)
            owner = fcntl.ioctl(network, _GET_OWNER)
            its_ends.callback(os.close, owner)
            pipes = (f"--ready-fd={up_network}", f"--exit-fd={gone}")
            place = (f"--userns-path=/proc/self/fd/{owner}", "--netns-type=path", f"/proc/self/fd/{network}")
            slirp = subprocess.Popen(
                ["slirp4netns", "--configure", "--disable-host-loopback", *pipes, *place, "tap0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[up_network, gone, network, owner],
            )
        self._ends.callback(_end, slirp)
        if not _is_readable(up, deadline) or not os.read(up, 1):
            raise EnvError("start", "slirp4netns gives the guest no network; it needs /dev/net/tun")

    def _pipe(self, guest_ends: contextlib.ExitStack) -> tuple[int, int]:
        """Our end, which stays until the sandbox is closed; the other, which closes once it is handed on."""
        own, guest = os.pipe()
        self._ends.callback(os.close, own)
        guest_ends.callback(os.close, guest)
        return own, guest

    def _settings_for_guest(self, sockets: Sequence[int], ready: int) -> dict[str, object]:
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
    """The last words of a guest: its output is read for as long as it lives, and only the tail is kept."""

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
        return f"; its last words: {text[-2000:]}" if text else ""

    def join(self) -> None:
        self._thread.join(_JOIN_SECONDS)


def guest_packages() -> Path:
    """The folder that `make osworld` fills with what the guest's Python lacks."""
    return Path(os.environ.get(GUEST_PACKAGES) or Path(sys.prefix) / "guest-packages")


def warm_home() -> Path:
    """The folder, beside it, of what applications wrote at their first start; there may be none."""
    return guest_packages().with_name("guest-home")


def _spawn(arguments: int, log: int, handed_in: Sequence[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ["bwrap", "--args", str(arguments), *_MAIN],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[*handed_in, arguments],
        )
    except OSError as error:
        raise EnvError("start", f"bubblewrap does not start: {error}") from error


def _readable(words: Sequence[str]) -> int:
    """A pipe that holds the words, as bubblewrap takes them: the list of processes does not show them."""
    out, into = os.pipe()
    with os.fdopen(into, "wb") as pipe:
        pipe.write(b"".join(word.encode() + b"\0" for word in words))
    return out


def _tell(bwrap: subprocess.Popen[bytes], settings: dict[str, object]) -> None:
    """Settings, the token among them, go in by a pipe: no list of processes or environments shows them."""
    assert bwrap.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died already, which the wait for its answer will say
        bwrap.stdin.write(json.dumps(settings).encode() + b"\n")
        bwrap.stdin.close()


def _first_process(info: int) -> int | None:
    """The sandbox's first process, by its number outside; None where bubblewrap ended before that."""
    words = b""
    while chunk := os.read(info, 4096):
        words += chunk
        if words.rstrip().endswith(b"}"):
            return int(json.loads(words)["child-pid"])
    return None


def _wait_until_ready(ready: int, deadline: float, words: _Log) -> None:
    if not _is_readable(ready, deadline):
        raise EnvTimeout("start", f"the guest did not come up in time{words.tail()}")
    if not os.read(ready, 1):
        words.join()
        raise EnvError("start", f"the guest ended while it started{words.tail()}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _end_all(first: int) -> None:
    """End the first process of the sandbox; the kernel ends all others before that one is gone."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(first, signal.SIGKILL)
    _is_readable(first, math.inf)
    os.close(first)


def _is_readable(descriptor: int, deadline: float) -> bool:
    """Wait until there is something to read, or an end, but not beyond the deadline."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic()) * 1000
    return bool(poll.poll(left))


def _arguments(settings: SandboxSettings, info: int) -> list[str]:
    """What bubblewrap is to do before it runs the guest."""
    for program in ("bwrap", "slirp4netns") if settings.network else ("bwrap",):
        if shutil.which(program) is None:
            package = {"bwrap": "bubblewrap"}.get(program, program)
            raise UserError(f"{program} is not installed; `make osworld` installs it (Debian: {package})")
    if not (packages := guest_packages()).is_dir():
        raise UserError(f"{packages}: no such folder; `make osworld` fills it, or set {GUEST_PACKAGES}")
    words = ["--die-with-parent", "--new-session", "--unshare-all", "--info-fd", str(info)]
    words += ["--uid", "1000", "--gid", "1000", "--hostname", "user-virtual-machine", "--clearenv"]
    for name, value in _ENVIRONMENT.items():
        words += ["--setenv", name, value]
    for mount in (*_host_mounts(), *_own_mounts(settings, packages)):
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
    yield from _browser()
    for place in (*(f"/etc/{name}" for name in _SETTINGS), *_MORE_OF_THE_HOST):
        yield ("--ro-bind-try", place, place)


def _browser() -> Iterator[tuple[str, ...]]:
    """Chrome's folder, or Chromium's under its name: a process is called after the file that it runs."""
    if CHROME.is_dir():
        yield ("--ro-bind", str(CHROME), str(CHROME))
    elif CHROMIUM.is_dir():
        for path in sorted(CHROMIUM.iterdir()):
            yield ("--symlink", str(path), str(CHROME / path.name))
        yield ("--ro-bind", str(CHROMIUM / "chromium"), str(CHROME / "chrome"))


def _own_mounts(settings: SandboxSettings, packages: Path) -> Iterator[tuple[str, ...]]:
    room = settings.home_megabytes * MEBIBYTE
    picture = settings.width * settings.height * 8
    yield ("--proc", "/proc")
    yield ("--dev", "/dev")
    for size, folder in (
        (room, "/home/user"),
        (room, "/tmp"),
        (room, "/dev/shm"),
        (16 * MEBIBYTE, "/var/tmp"),
        (16 * MEBIBYTE, "/usr/local"),
        (64 * MEBIBYTE + picture, "/run"),
    ):
        yield ("--size", str(size), "--tmpfs", folder)
    yield ("--chmod", "1777", "/tmp")
    yield ("--perms", "0700", "--dir", "/run/user/1000")
    yield ("--symlink", "/run", "/var/run")
    yield ("--symlink", "/run/localtime", "/etc/localtime")
    for name in (*_OWN_SETTINGS, *(["resolv.conf"] if settings.network else [])):
        yield ("--ro-bind", str(GUEST / "etc" / name), f"/etc/{name}")
    yield ("--ro-bind", str(GUEST), "/opt/arpo/arpo/envs/osworld/guest")
    yield ("--ro-bind", str(packages), "/opt/arpo/packages")
    yield ("--ro-bind-try", str(warm_home()), "/opt/arpo/home")
