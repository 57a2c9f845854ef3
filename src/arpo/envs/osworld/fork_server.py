"""Fork server: loads desktop-env once and forks one worker process per episode.

Loading takes seconds and 250 MB. A fork takes milliseconds and only the memory of its episode.

Everything ends with this process, even if it is killed. The fork server exits when its control socket closes,
and the kernel kills its workers with it. `cleanup.py` deletes the folder with the files of all episodes.
Workers are identified by pidfd, never by a process id alone.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from arpo.envs.osworld.cleanup import delete_at_exit
from arpo.envs.osworld.limits import ControlGroups, Limits, remove_group
from arpo.envs.osworld.messages import MAX_PACKET_BYTES
from arpo.envs.osworld.needs import LOCAL
from arpo.errors import EnvError
from arpo.processes.child import Child, python_command
from arpo.processes.environment import clean_environment

LOAD_SECONDS = 120.0  # desktop-env loads within seconds; a busy machine needs longer
FORK_SECONDS = 30.0

# Environment variables with which desktop-env's providers find their machines.
PROVIDER_VARIABLES = {
    "docker": ("DOCKER_*", "HF_ENDPOINT"),
    "vmware": ("DISPLAY", "XAUTHORITY", "HF_ENDPOINT"),
    "virtualbox": ("DISPLAY", "XAUTHORITY", "VBOX_*", "HF_ENDPOINT"),
    "aws": ("AWS_*", "ENABLE_TTL", "DEFAULT_TTL_MINUTES"),
    "azure": ("AZURE_*",),
    "aliyun": ("ALIYUN_*", "ENABLE_TTL", "DEFAULT_TTL_MINUTES"),
    "volcengine": ("VOLCENGINE_*",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Process and private folder of one episode."""

    pid: int
    pidfd: int  # readable once the process has ended
    connection: socket.socket
    folder: Path
    group: Path | None  # its control group, if it has one

    def signal(self, number: signal.Signals) -> None:
        """Does nothing if the process has already ended."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def release(self) -> None:
        """Call after the process has ended."""
        os.close(self.pidfd)
        if self.group is not None:
            remove_group(self.group)


def private_root() -> Path:
    """Temporary folder of this process. It is deleted when the process ends, even if it is killed."""
    with _making:
        return _make_root()


def control_groups() -> ControlGroups | None:
    """Control groups for workers; None if this user cannot make any. Deleted like the folder."""
    root = private_root()
    with _making:
        return _make_groups(root.name)


@functools.cache
def _make_root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="arpo-osworld-"))
    delete_at_exit(folder)
    folder.chmod(0o711)  # the sandbox may belong to another user (`sandbox_layout.py`)
    return folder


@functools.cache
def _make_groups(name: str) -> ControlGroups | None:
    groups = ControlGroups.create(name)
    if groups is not None:
        delete_at_exit(groups.folder)
    return groups


_making = threading.Lock()
_episode_numbers = itertools.count()


class ForkServer:
    """Forks workers for machines of `provider`, under the interpreter `python`.

    Workers of virtual machines are `gentle`: they get SIGTERM and time to stop their machine before SIGKILL.
    `limits` bounds a worker together with its desktop. Virtual machines have limits of their own: None.
    Thread-safe. If the server process has died, the next fork starts a new one.
    """

    def __init__(self, python: str, *, provider: str, limits: Limits | None) -> None:
        self._python = python
        self._provider = provider
        self._limits = limits
        self.gentle = provider != LOCAL
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._control: socket.socket | None = None

    def fork(self) -> Worker:
        """Blocks until the worker runs; the first call also waits for desktop-env to load."""
        folder = private_root() / f"episode-{next(_episode_numbers)}"
        folder.mkdir(mode=0o700)
        try:
            with self._lock:
                return self._fork(folder)
        except BaseException:
            folder.rmdir()
            raise

    def _fork(self, folder: Path) -> Worker:
        if self._control is not None:
            try:
                return self._request_worker(self._control, folder)
            except (OSError, EOFError):
                self._control.close()
                self._control = None
        self._control = self._start_process()
        try:
            return self._request_worker(self._control, folder)
        except (OSError, EOFError) as error:
            raise EnvError("start", f"cannot start a worker: {error}; {self._last_output}") from error

    def _request_worker(self, control: socket.socket, folder: Path) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                control.settimeout(FORK_SECONDS)
                limits = self._limits.of_worker() if self._limits else {}
                request = json.dumps(
                    {"folder": str(folder), "gentle": self.gentle, "limits": limits}
                ).encode()
                socket.send_fds(control, [request], [theirs.fileno()])
                answer, pidfds, _, _ = socket.recv_fds(control, MAX_PACKET_BYTES, 1)
            except OSError:
                ours.close()
                raise
        if not pidfds:
            ours.close()
            if answer:
                raise EnvError("start", f"cannot fork a worker: {json.loads(answer)['error']}")
            raise EOFError("the fork server has ended")
        pid = json.loads(answer)["pid"]
        try:
            group = self._limit(pid, folder.name)
        except EnvError:
            os.close(pidfds[0])
            ours.close()  # which ends the worker
            raise
        return Worker(pid=pid, pidfd=pidfds[0], connection=ours, folder=folder, group=group)

    def _limit(self, pid: int, name: str) -> Path | None:
        """The control group of a new worker, if it has one."""
        groups = control_groups()
        if groups is None or self._limits is None:
            return None
        try:
            return groups.add(name, pid, self._limits)
        except OSError as error:
            raise EnvError("start", f"cannot limit the memory of a desktop: {error}") from error

    def _start_process(self) -> socket.socket:
        """Returns the control socket once desktop-env is loaded."""
        if self._child is not None:
            self._child.end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = private_root()
        with theirs:
            try:
                self._child = Child(
                    python_command("arpo.envs.osworld.worker", str(theirs.fileno()), python=self._python),
                    env=_server_environment(self._provider),
                    log=root / f"fork-server-{id(self)}.log",
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd=root,
                )
            except OSError as error:
                ours.close()
                raise EnvError("start", f"osworld.python = {self._python!r}: {error}") from error
        ours.settimeout(LOAD_SECONDS)
        try:
            answer = ours.recv(MAX_PACKET_BYTES)
        except TimeoutError:
            answer = b""
        if not answer:
            ours.close()
            self._child.end()
            raise EnvError(
                "start",
                f"{self._python} cannot load desktop-env: {self._last_output}; run `arpo osworld install`",
            )
        return ours

    @property
    def _last_output(self) -> str:
        assert self._child is not None
        return self._child.last_output


@functools.cache
def fork_server(python: str, provider: str, limits: Limits | None) -> ForkServer:
    """The fork server of this process for these settings; later calls return the same one."""
    return ForkServer(python, provider=provider, limits=limits)


def _server_environment(provider: str) -> dict[str, str]:
    """Environment variables for desktop-env: the allowed ones, and those of the provider.

    Local desktops read no .env files. Numeric libraries get one thread because threads do not survive a fork.
    Requests to guests on this machine bypass proxies. Temporary files are deleted with the private folder.
    """
    kept = clean_environment(*PROVIDER_VARIABLES.get(provider, ()))
    no_proxy = ",".join(
        filter(None, [kept.get("no_proxy") or kept.get("NO_PROXY"), "127.0.0.1", "localhost"])
    )
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own = {"no_proxy": no_proxy, "NO_PROXY": no_proxy, "TMPDIR": str(private_root())}
    no_dotenv = {"PYTHON_DOTENV_DISABLED": "1"} if provider == LOCAL else {}
    return {**kept, **one_thread, **no_dotenv, **own}
