"""The light desktop: a bubblewrap sandbox with its own users, processes, network, host name and files.

- `boot` starts the sandbox and returns when its server is ready. `close` kills every process and removes all
  files.
- The guest writes only to in-memory file systems of limited size (`sandbox_layout.py`).
- The guest sees the host's programs and some of their settings, read-only.
- The guest has no capabilities, cannot gain privileges, and cannot use the system calls in `seccomp.py`.
- The guest has limits on memory, processes and CPU time (`limits.py`).
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
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arpo.envs.osworld.limits import MEBIBYTE, Limits
from arpo.envs.osworld.sandbox_layout import (
    BWRAP_ENVIRONMENT,
    GUEST,
    Arguments,
    GuestFiles,
    bwrap_arguments,
    sandbox_user,
)
from arpo.errors import EnvError, EnvTimeout, UserError
from arpo.processes.child import python_command

GUEST_PACKAGES = "ARPO_GUEST_PACKAGES"  # environment variable: folder with the guest's Python packages
LOG_BYTES = 64 * 1024
_JOIN_SECONDS = 5.0
_GET_USER_NAMESPACE = 0xB701  # ioctl NS_GET_USERNS: the user namespace that owns a namespace

_SLIRP = ("slirp4netns", "--configure", "--disable-host-loopback", "--enable-seccomp")
# Cloud machines serve their credentials at these addresses: most providers, Alibaba, Azure, Oracle.
_CREDENTIAL_ADDRESSES = ("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32")
_GUEST_COMMAND = python_command("arpo.envs.osworld.guest", python="/usr/bin/python3")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSettings:
    width: int
    height: int
    home_megabytes: int  # limit for each of the home folder, /tmp and /dev/shm
    network: bool
    limits: Limits


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
            arguments = self._bwrap_arguments()
            after_spawn.callback(arguments.close)
            words = _pipe_with(["--info-fd", str(info_guest), *arguments.words])
            after_spawn.callback(os.close, words)
            bwrap = _spawn(words, log_guest, [*sockets, ready_guest, info_guest, *arguments.descriptors])
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

    def _bwrap_arguments(self) -> Arguments:
        """Raises `UserError` if a program or the guest's packages are missing."""
        _check_programs(("bwrap", "slirp4netns", "ip") if self.settings.network else ("bwrap",))
        if not guest_packages().is_dir():
            raise UserError(
                f"{guest_packages()}: no such folder; run `arpo osworld install`, or set {GUEST_PACKAGES}"
            )
        framebuffer_bytes = self.settings.width * self.settings.height * 8
        return bwrap_arguments(
            guest_files(),
            home_bytes=self.settings.home_megabytes * MEBIBYTE,
            run_bytes=64 * MEBIBYTE + framebuffer_bytes,
            network=self.settings.network,
        )

    def _start_network(self, init_pid: int, deadline: float) -> None:
        """Starts slirp4netns for the sandbox's network namespace. It exits when its exit pipe closes.

        Addresses at which cloud machines serve their credentials get no route.
        """
        with contextlib.ExitStack() as after_spawn:
            ready, ready_slirp = self._pipe(after_spawn)
            exit_slirp, exit_own = os.pipe()
            after_spawn.callback(os.close, exit_slirp)
            self._cleanup.callback(os.close, exit_own)
            network = os.open(f"/proc/{init_pid}/ns/net", os.O_RDONLY)
            after_spawn.callback(os.close, network)
            owner = fcntl.ioctl(network, _GET_USER_NAMESPACE)
            after_spawn.callback(os.close, owner)
            net, user = f"/proc/self/fd/{network}", f"/proc/self/fd/{owner}"
            enter = ("nsenter", "--preserve-credentials", f"--user={user}", f"--net={net}")
            for address in _CREDENTIAL_ADDRESSES:
                no_route = ("ip", "route", "add", "blackhole", address)
                _run_in_namespaces([*enter, *no_route], [network, owner])
            pipes = (f"--ready-fd={ready_slirp}", f"--exit-fd={exit_slirp}")
            slirp = subprocess.Popen(
                [*_SLIRP, *pipes, f"--userns-path={user}", "--netns-type=path", net, "tap0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[ready_slirp, exit_slirp, network, owner],
                env=BWRAP_ENVIRONMENT,
                **sandbox_user(),
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
            "limits": self.settings.limits.of_guest(),
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
        return f"; last output: {text[-2000:]}{namespace_remedy(text)}" if text else ""

    def join(self) -> None:
        self._thread.join(_JOIN_SECONDS)


def namespace_remedy(output: str) -> str:
    """The remedy if bubblewrap cannot create a user namespace, which root needs too; else an empty string."""
    if not re.search(r"bwrap: .*(namespace|uid map)", output):
        return ""
    return (
        ". The kernel refuses user namespaces. As root, run `sysctl kernel.unprivileged_userns_clone=1` "
        "(Debian) or `sysctl kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu); in a container, run "
        "the desktops on the host instead: arpo env-host --help"
    )


def guest_packages() -> Path:
    """The folder with the guest's Python packages, which `arpo osworld install` installs."""
    return Path(os.environ.get(GUEST_PACKAGES) or Path(sys.prefix) / "guest-packages")


def prepared_home() -> Path:
    """The folder with the files of the applications' first start (`prepare_home.py`). It may be missing."""
    return guest_packages().with_name("guest-home")


def guest_files() -> GuestFiles:
    return GuestFiles(guest=GUEST, packages=guest_packages(), home=prepared_home())


def _check_programs(names: Sequence[str]) -> None:
    for name in names:
        if shutil.which(name) is None:
            package = {"bwrap": "bubblewrap", "ip": "iproute2"}.get(name, name)
            raise UserError(f"{name} is not installed; run `arpo osworld install` (Debian package {package})")


def _spawn(arguments: int, log: int, inherited: Sequence[int]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ["bwrap", "--args", str(arguments), *_GUEST_COMMAND],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=[*inherited, arguments],
            env=BWRAP_ENVIRONMENT,
            **sandbox_user(),
        )
    except OSError as error:
        raise EnvError("start", f"could not start bubblewrap: {error}") from error


def _run_in_namespaces(command: Sequence[str], namespaces: Sequence[int]) -> None:
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        pass_fds=namespaces,
        env=BWRAP_ENVIRONMENT,
        **sandbox_user(),
    )
    if done.returncode:
        raise EnvError("start", f"{command[0]} failed: {done.stderr.strip()}")


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
