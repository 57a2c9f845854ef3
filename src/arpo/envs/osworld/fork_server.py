"""Fork server: loads desktop-env once and forks one worker process per episode.

Loading takes seconds and 250 MB. A fork takes milliseconds and only the memory of its episode.

Everything ends with this process, even if it is killed. The fork server exits when its control socket closes,
and the kernel kills its workers with it. A cleanup process waits for the end of a pipe and then deletes the
folder with the files of all episodes. Workers are identified by pidfd, never by a process id alone.
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

from arpo.envs.osworld.messages import MAX_PACKET_BYTES
from arpo.errors import EnvError

LOAD_SECONDS = 120.0  # desktop-env loads within seconds; a busy machine needs longer
FORK_SECONDS = 30.0

# Deletes its argument at the end of its input. Retries because dying workers may still write.
CLEANUP_SCRIPT = 'cat >/dev/null; for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$1" && exit; sleep 1; done'


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Process and private folder of one episode."""

    pid: int
    pidfd: int  # readable once the process has ended
    connection: socket.socket
    folder: Path

    def signal(self, number: signal.Signals) -> None:
        """Does nothing if the process has already ended."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            return

    def release(self) -> None:
        os.close(self.pidfd)


def private_root() -> Path:
    """Temporary folder of this process. It is deleted when the process ends, even if it is killed."""
    with _root_lock:
        return _root()[0]


@functools.cache
def _root() -> tuple[Path, subprocess.Popen[bytes]]:
    """The folder and its cleanup process. The cache keeps the pipe to it open."""
    root = tempfile.mkdtemp(prefix="arpo-osworld-")
    cleanup = subprocess.Popen(
        ["/bin/sh", "-c", CLEANUP_SCRIPT, "sh", root],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    return Path(root), cleanup


_root_lock = threading.Lock()
_episode_numbers = itertools.count()


class ForkServer:
    """Forks workers under the interpreter `python`.

    With `gentle`, workers get SIGTERM and time to stop their machine before SIGKILL.
    Thread-safe. If the server process has died, the next fork starts a new one.
    """

    def __init__(self, python: str, *, gentle: bool) -> None:
        self._python = python
        self.gentle = gentle
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
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
            raise EnvError("start", f"cannot start a worker: {error}; {self._last_log_line()}") from error

    def _request_worker(self, control: socket.socket, folder: Path) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                control.settimeout(FORK_SECONDS)
                request = json.dumps({"folder": str(folder), "gentle": self.gentle}).encode()
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
        return Worker(pid=json.loads(answer)["pid"], pidfd=pidfds[0], connection=ours, folder=folder)

    def _start_process(self) -> socket.socket:
        """Returns the control socket once desktop-env is loaded."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = private_root()
        with theirs, self._log_file.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    [self._python, "-m", "arpo.envs.osworld.worker", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                    cwd=root,
                    env=_server_environment(dotenv=self.gentle),
                    start_new_session=True,
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
            self._process.kill()
            self._process.wait()
            self._process = None
            raise EnvError(
                "start",
                f"{self._python} cannot load desktop-env: {self._last_log_line()}; run `make osworld`",
            )
        return ours

    @property
    def _log_file(self) -> Path:
        return private_root() / f"fork-server-{id(self)}.log"

    def _last_log_line(self) -> str:
        """The error, if the log ends with a traceback."""
        log = self._log_file.read_text("utf-8", "replace").strip()
        return log.splitlines()[-1] if log else "its log is empty"


@functools.cache
def fork_server(python: str, gentle: bool) -> ForkServer:
    """The fork server of this process for `python`; later calls return the same one."""
    return ForkServer(python, gentle=gentle)


def _server_environment(*, dotenv: bool) -> dict[str, str]:
    """Environment variables for desktop-env, without secrets.

    Hidden are the host's token, the proxy file and, unless `dotenv`, .env files. Numeric libraries get one
    thread because threads do not survive a fork. Requests to guests on this machine bypass proxies.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN_VARIABLES}
    no_proxy = ",".join(
        filter(None, [kept.get("no_proxy") or kept.get("NO_PROXY"), "127.0.0.1", "localhost"])
    )
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    no_dotenv = {} if dotenv else {"PYTHON_DOTENV_DISABLED": "1"}
    return {**kept, **one_thread, **no_dotenv, "no_proxy": no_proxy, "NO_PROXY": no_proxy}


_HIDDEN_VARIABLES = ("PROXY_CONFIG_FILE", "ARPO_HOST_TOKEN")
