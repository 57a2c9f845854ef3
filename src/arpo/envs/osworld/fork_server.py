"""Where workers come from: a process that has desktop-env loaded and forks one worker for each episode.

Loading takes seconds and 250 MB, a fork milliseconds and what the episode itself needs. Everything hangs on
pipes and ends with this process, also when it is killed: the nursery reads the end of its connection, its
workers are killed with it, and a janitor, which does nothing but wait, removes the folder with all files of
all episodes. No process is ever known by a number alone: a worker is held by a file descriptor.
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

from arpo.errors import EnvError

WARM_SECONDS = 120.0  # desktop-env loads within seconds; a busy machine is given time
FORK_SECONDS = 30.0
PACKET = 2**16

# Removes its argument when its input ends; again while dying workers still write.
JANITOR = 'cat >/dev/null; for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf -- "$1" && exit; sleep 1; done'


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """One process for one episode, and the folder that is its own."""

    pid: int
    handle: int  # a pidfd: readable when the process has ended
    connection: socket.socket
    folder: Path

    def signal(self, number: signal.Signals) -> None:
        try:
            signal.pidfd_send_signal(self.handle, number)
        except ProcessLookupError:
            return

    def release(self) -> None:
        os.close(self.handle)


def private_root() -> Path:
    """This process's own folder; a janitor removes it when the process has ended, however it did."""
    with _making:
        return _root()[0]


@functools.cache
def _root() -> tuple[Path, subprocess.Popen[bytes]]:
    """The folder, and the janitor: held, so that its pipe stays open."""
    root = tempfile.mkdtemp(prefix="arpo-osworld-")
    janitor = subprocess.Popen(
        ["/bin/sh", "-c", JANITOR, "sh", root],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
    )
    return Path(root), janitor


_making = threading.Lock()
_numbers = itertools.count()


class Nursery:
    """Forks workers under `python`. `gentle`: they are asked to end before they are killed.

    Safe to use from several threads. A nursery process that has died is replaced at the next fork.
    """

    def __init__(self, python: str, *, gentle: bool) -> None:
        self._python = python
        self.gentle = gentle
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> Worker:
        """Blocks until the worker runs: the first time until desktop-env is loaded."""
        folder = private_root() / f"episode-{next(_numbers)}"
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
                return self._forked(self._control, folder)
            except (OSError, EOFError):
                self._control.close()
                self._control = None
        self._control = self._warm()
        try:
            return self._forked(self._control, folder)
        except (OSError, EOFError) as error:
            raise EnvError("start", f"no worker could be started: {error}; {self._log()}") from error

    def _forked(self, control: socket.socket, folder: Path) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                control.settimeout(FORK_SECONDS)
                order = json.dumps({"folder": str(folder), "gentle": self.gentle}).encode()
                socket.send_fds(control, [order], [theirs.fileno()])
                answer, handles, _, _ = socket.recv_fds(control, PACKET, 1)
            except OSError:
                ours.close()
                raise
        if not handles:
            ours.close()
            if answer:
                raise EnvError("start", f"no worker could be forked: {json.loads(answer)['error']}")
            raise EOFError("the nursery has ended")
        return Worker(pid=json.loads(answer)["pid"], handle=handles[0], connection=ours, folder=folder)

    def _warm(self) -> socket.socket:
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
                    env=_environment(dotenv=self.gentle),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise EnvError("start", f"osworld.python = {self._python!r}: {error}") from error
        ours.settimeout(WARM_SECONDS)
        try:
            answer = ours.recv(PACKET)
        except TimeoutError:
            answer = b""
        if not answer:
            ours.close()
            self._process.kill()
            self._process.wait()
            self._process = None
            raise EnvError("start", f"{self._python} cannot run desktop-env (`make osworld`): {self._log()}")
        return ours

    @property
    def _log_file(self) -> Path:
        return private_root() / f"nursery-{id(self)}.log"

    def _log(self) -> str:
        """Its last line, which of a traceback is the error."""
        said = self._log_file.read_text("utf-8", "replace").strip()
        return f"it said: {said.splitlines()[-1]}" if said else "it said nothing"


@functools.cache
def nursery(python: str, gentle: bool) -> Nursery:
    """The one of this process for this interpreter."""
    return Nursery(python, gentle=gentle)


def _environment(*, dotenv: bool) -> dict[str, str]:
    """What desktop-env may see: no file of proxies or secrets that lies about, nor the host's own token.

    One thread each, as threads do not survive a fork; guests on this machine are not asked through a proxy.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN}
    past_proxies = ",".join(
        filter(None, [kept.get("no_proxy") or kept.get("NO_PROXY"), "127.0.0.1", "localhost"])
    )
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    unread = {} if dotenv else {"PYTHON_DOTENV_DISABLED": "1"}
    return {**kept, **single, **unread, "no_proxy": past_proxies, "NO_PROXY": past_proxies}


_HIDDEN = ("PROXY_CONFIG_FILE", "ARPO_HOST_TOKEN")
